package extended

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"hash/crc64"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// checksum is S3's checksum of a whole object, and what is computed to compare with it. A CRC is computed part by part as the
// bytes arrive, when the processor's caches still have them; another sum in their order, as they are read.
type checksum struct {
	want  string
	crc   *polynomial
	sum   uint64    // of the parts so far, if there is a crc
	other hash.Hash // if there is none
}

// wholeSum is nil when there is nothing to compare with: S3 has no checksum, or one that was made of the parts' and can't be
// checked without knowing the parts.
func wholeSum(head *s3.HeadObjectOutput) *checksum {
	if head.ChecksumType == s3types.ChecksumTypeComposite {
		return nil
	}
	switch {
	case head.ChecksumCRC32 != nil:
		return &checksum{want: *head.ChecksumCRC32, crc: ieee}
	case head.ChecksumCRC32C != nil:
		return &checksum{want: *head.ChecksumCRC32C, crc: castagnoli}
	case head.ChecksumCRC64NVME != nil:
		return &checksum{want: *head.ChecksumCRC64NVME, crc: nvme}
	case head.ChecksumSHA256 != nil:
		return &checksum{want: *head.ChecksumSHA256, other: sha256.New()}
	case head.ChecksumSHA1 != nil:
		return &checksum{want: *head.ChecksumSHA1, other: sha1.New()}
	}
	return nil
}

// arrived takes the next bytes of a part and returns its sum.
func (c *checksum) arrived(part uint64, p []byte) uint64 {
	if c == nil || c.crc == nil {
		return 0
	}
	return c.crc.update(part, p)
}

// read takes the next bytes of the object.
func (c *checksum) read(p []byte) {
	if c != nil && c.other != nil {
		c.other.Write(p)
	}
}

// joined takes the next whole part.
func (c *checksum) joined(part uint64, size int64) {
	if c != nil && c.crc != nil {
		c.sum = c.crc.join(c.sum, part, size)
	}
}

// matches compares, once everything was taken, with S3's text.
func (c *checksum) matches() bool {
	if c == nil {
		return true
	}
	text, err := base64.StdEncoding.DecodeString(c.want)
	if err != nil {
		return true // a text that can't be read says nothing
	}
	if c.other != nil {
		return bytes.Equal(text, c.other.Sum(nil))
	}
	return bytes.Equal(text, binary.BigEndian.AppendUint64(nil, c.sum)[8-c.crc.size:])
}

// polynomial is a CRC's, with its bits reversed: the highest is the coefficient of x⁰.
type polynomial struct {
	size   int // bytes
	bits   uint64
	update func(sum uint64, p []byte) uint64
}

const crc64NVME = 0x9a6c9329ac4bc9b5

var (
	ieee       = &polynomial{4, crc32.IEEE, func(sum uint64, p []byte) uint64 { return uint64(crc32.Update(uint32(sum), crc32.IEEETable, p)) }}
	castagnoli = &polynomial{4, crc32.Castagnoli, func(sum uint64, p []byte) uint64 {
		return uint64(crc32.Update(uint32(sum), crc32.MakeTable(crc32.Castagnoli), p))
	}}
	nvmeTable = crc64.MakeTable(crc64NVME)
	nvme      = &polynomial{8, crc64NVME, func(sum uint64, p []byte) uint64 { return crc64.Update(sum, nvmeTable, p) }}
)

// join is the sum of a text whose beginning has the sum a, and whose rest of size bytes has the sum b: a·x^(8·size) + b. The
// ones that a CRC begins and ends with cancel out.
func (p *polynomial) join(a, b uint64, size int64) uint64 {
	top := uint64(1) << (8*p.size - 1)
	shift, power := top, top>>8 // x⁰, x⁸
	for n := size; n > 0; n >>= 1 {
		if n&1 != 0 {
			shift = p.multiply(shift, power)
		}
		power = p.multiply(power, power)
	}
	return p.multiply(shift, a) ^ b
}

// multiply is a·b modulo the polynomial.
func (p *polynomial) multiply(a, b uint64) (product uint64) {
	for bit := uint64(1) << (8*p.size - 1); bit > 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ p.bits
		} else {
			b >>= 1
		}
	}
	return product
}
