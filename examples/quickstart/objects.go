package main

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// objects is an S3 in this process, for attachments. It is gofakes3, which isn't ours, and counts what was done.
type objects struct {
	*s3mem.Backend
	http.Handler
	// pointedTo tells whether a message points to an object, at the moment.
	pointedTo func(key string) bool

	put, bytes, fetched, deleted atomic.Int64
	early                        atomic.Int64 // deleted while a message pointed to them
}

func newObjects(bucket string, pointedTo func(key string) bool) (*objects, error) {
	o := &objects{Backend: s3mem.New(), pointedTo: pointedTo}
	o.Handler = gofakes3.New(o, gofakes3.WithoutVersioning(), gofakes3.WithTimeSkewLimit(0)).Server()
	return o, o.CreateBucket(bucket)
}

// PutObject counts.
func (o *objects) PutObject(bucket, key string, meta map[string]string, body io.Reader, size int64, if_ *gofakes3.PutConditions) (gofakes3.PutObjectResult, error) {
	result, err := o.Backend.PutObject(bucket, key, meta, body, size, if_)
	if err == nil {
		o.put.Add(1)
		o.bytes.Add(size)
	}
	return result, err
}

// GetObject counts.
func (o *objects) GetObject(bucket, key string, part *gofakes3.ObjectRangeRequest) (*gofakes3.Object, error) {
	object, err := o.Backend.GetObject(bucket, key, part)
	if err == nil {
		o.fetched.Add(1)
	}
	return object, err
}

// DeleteObject counts.
func (o *objects) DeleteObject(bucket, key string) (gofakes3.ObjectDeleteResult, error) {
	o.countDeleted(key)
	return o.Backend.DeleteObject(bucket, key)
}

// DeleteMulti counts.
func (o *objects) DeleteMulti(bucket string, keys ...string) (gofakes3.MultiDeleteResult, error) {
	o.countDeleted(keys...)
	return o.Backend.DeleteMulti(bucket, keys...)
}

func (o *objects) countDeleted(keys ...string) {
	for _, key := range keys {
		o.deleted.Add(1)
		if o.pointedTo(key) {
			o.early.Add(1)
		}
	}
}

// left are the objects that are still there, and those of them that no message points to.
func (o *objects) left(bucket string) (all, orphans int, err error) {
	list, err := o.ListBucket(bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		return 0, 0, err
	}
	for _, object := range list.Contents {
		all++
		count(&orphans, !o.pointedTo(object.Key))
	}
	return all, orphans, nil
}

// pointsTo tells whether one of the messages that SQS has points to an object.
func (s *scene) pointsTo(key string) bool {
	for _, queue := range []string{queueName, dlqName} {
		for _, m := range s.server.Queue(queue).Messages {
			if strings.Contains(m.Body, key) {
				return true
			}
		}
	}
	return false
}
