package extended

import "strings"

// A received message's handle carries its pointer, so that a deletion knows the object:
//
//	-..s3BucketName..-BUCKET-..s3BucketName..--..s3Key..-KEY-..s3Key..-RAW
const (
	bucketMarker = "-..s3BucketName..-"
	keyMarker    = "-..s3Key..-"
)

// embed puts a pointer into a receipt handle.
func embed(p Pointer, raw string) string {
	return bucketMarker + p.Bucket + bucketMarker + keyMarker + p.Key + keyMarker + raw
}

// split takes a receipt handle apart. One without a pointer is returned as it is. SQS knows the raw one only.
func split(handle string) (raw string, p Pointer, found bool) {
	rest, ok := strings.CutPrefix(handle, bucketMarker)
	if !ok {
		return handle, p, false
	}
	bucket, rest, ok := strings.Cut(rest, bucketMarker)
	if !ok {
		return handle, p, false
	}
	rest, ok = strings.CutPrefix(rest, keyMarker)
	end := strings.LastIndex(rest, keyMarker) // the last one: a key can have the marker in it, SQS's handle can't
	if !ok || end < 0 {
		return handle, p, false
	}
	return rest[end+len(keyMarker):], Pointer{Bucket: bucket, Key: rest[:end]}, true
}
