package extended

import (
	"context"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// deletes is an S3 that knows DeleteObjects only.
type deletes struct {
	S3
	mu          sync.Mutex
	keys        []string
	calls, most int
}

func (d *deletes) DeleteObjects(ctx context.Context, in *s3.DeleteObjectsInput, _ ...func(*s3.Options)) (*s3.DeleteObjectsOutput, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.most = max(d.most, len(in.Delete.Objects))
	for _, o := range in.Delete.Objects {
		d.keys = append(d.keys, aws.ToString(o.Key))
	}
	return &s3.DeleteObjectsOutput{}, nil
}
