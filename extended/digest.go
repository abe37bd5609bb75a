package extended

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SQS's answers carry the MD5 of what it has: the pointer, and the attributes with the reserved one. A caller that checks
// them, or the worker, has the payload and the sender's attributes, so they are made anew.

func bodyMD5(body string) *string {
	h := md5.New()
	_, _ = io.Copy(h, strings.NewReader(body))
	return aws.String(hex.EncodeToString(h.Sum(nil)))
}

// attributesMD5 is the digest as SQS documents it: each name, type and value with its length, by name; nil for none.
func attributesMD5(attributes map[string]types.MessageAttributeValue) *string {
	if len(attributes) == 0 {
		return nil
	}
	h := md5.New()
	field := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		io.WriteString(h, s)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		dataType := aws.ToString(value.DataType)
		field(name)
		field(dataType)
		if strings.HasPrefix(dataType, "Binary") {
			h.Write([]byte{2})
			field(string(value.BinaryValue))
			continue
		}
		h.Write([]byte{1})
		field(aws.ToString(value.StringValue))
	}
	return aws.String(hex.EncodeToString(h.Sum(nil)))
}
