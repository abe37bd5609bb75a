package sqsmodel

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func md5Hex(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// md5OfAttributes is the digest that the developer guide describes: the
// attributes by name; of each its name, its type, one byte for the kind of its
// value, its value; everything but that byte with its length before it.
func md5OfAttributes(attrs map[string]types.MessageAttributeValue) string {
	if len(attrs) == 0 {
		return ""
	}
	var b []byte
	field := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for _, name := range sortedKeys(attrs) {
		v := attrs[name]
		field(name)
		field(value(v.DataType))
		if strings.HasPrefix(value(v.DataType), "Binary") {
			b = append(b, 2)
			field(string(v.BinaryValue))
		} else {
			b = append(b, 1)
			field(value(v.StringValue))
		}
	}
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}
