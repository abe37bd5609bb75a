package extended

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func TestSumsOfPartsJoinToThatOfTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, p := range map[string]*polynomial{"CRC-32": ieee, "CRC-32C": castagnoli, "CRC-64/NVME": nvme} {
		for range 50 {
			whole := make([]byte, r.IntN(20_000))
			for i := range whole {
				whole[i] = byte(r.Uint32())
			}
			var sum uint64
			for rest := whole; len(rest) > 0; {
				n := min(1+r.IntN(5000), len(rest))
				part, half := uint64(0), n/2
				part = p.update(p.update(part, rest[:half]), rest[half:n])
				sum = p.join(sum, part, int64(n))
				rest = rest[n:]
			}
			if want := p.update(0, whole); sum != want {
				t.Fatalf("%s of %d bytes: %x, want %x", name, len(whole), sum, want)
			}
		}
	}
}

// The check values are those of the CRC catalogue for "123456789".
func TestAWholeObjectsChecksumIsComparedWhateverItsKind(t *testing.T) {
	text := []byte("123456789")
	encode := func(sum uint64, size int) *string {
		return aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, sum)[8-size:]))
	}
	for name, head := range map[string]*s3.HeadObjectOutput{
		"CRC32":     {ChecksumCRC32: encode(0xcbf43926, 4)},
		"CRC32C":    {ChecksumCRC32C: encode(0xe3069283, 4)},
		"CRC64NVME": {ChecksumCRC64NVME: encode(0xae8b14860a799888, 8)},
		"SHA1":      {ChecksumSHA1: aws.String("98O8HYCOBHMq32eZZczDTKeuNEE=")},
		"SHA256":    {ChecksumSHA256: aws.String("FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=")},
	} {
		take := func(text []byte) bool {
			c := wholeSum(head)
			c.read(text)
			first, rest := text[:4], text[4:]
			c.joined(c.arrived(0, first), 4)
			c.joined(c.arrived(0, rest), int64(len(rest)))
			return c.matches()
		}
		if !take(text) {
			t.Errorf("%s: the right bytes don't match", name)
		}
		if take([]byte("123456788")) {
			t.Errorf("%s: wrong bytes match", name)
		}
	}
	if wholeSum(&s3.HeadObjectOutput{ChecksumType: s3types.ChecksumTypeComposite, ChecksumCRC32: aws.String("AAAA")}) != nil {
		t.Error("a checksum of checksums is taken for the whole's")
	}
	if c := wholeSum(&s3.HeadObjectOutput{}); !c.matches() || c.arrived(0, text) != 0 {
		t.Error("without a checksum there is nothing to compare")
	}
}
