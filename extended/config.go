package extended

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.opentelemetry.io/otel/metric"
)

const (
	// MaxMessage is the most that SQS takes, for one message and for one batch: 1 MiB since August 2025.
	MaxMessage = 1_048_576
	// DefaultThreshold is 256 KiB, above which the Java and Python libraries go through S3, and below which their readers
	// expect messages to be.
	DefaultThreshold = 262_144
	// MaxPayload is 2 GiB, the most that the libraries in other languages read.
	MaxPayload = 2 << 30

	// QueueLimit as [Config.Threshold]: as much as the queue's own MaximumMessageSize takes.
	QueueLimit = -1
)

// Form is how a pointer is written. All forms are read.
type Form int

const (
	// FormJava2 is what Java's library writes from 1.1 to 2.x, and what the most readers understand: class
	// software.amazon.payloadoffloading.PayloadS3Pointer with the attribute SQSLargePayloadSize.
	FormJava2 Form = iota
	// FormExtendedPayloadSize has the attribute ExtendedPayloadSize instead: Java with the legacy attribute disabled,
	// Python's default, SNS. A default Python consumer asks for no other.
	FormExtendedPayloadSize
	// FormJava1 is Java 1.0.x: class com.amazon.sqs.javamessaging.MessageS3Pointer with SQSLargePayloadSize.
	FormJava1
)

// Fit is what becomes of a batch that is larger than SQS takes.
type Fit int

const (
	// FitOffload sends its largest bodies through S3 until the rest fits: one call, as asked for.
	FitOffload Fit = iota
	// FitSplit makes several calls, in order, when their messages alone are small enough. If one fails as a whole, its
	// entries and those after it are reported in Failed.
	FitSplit
)

// Location is a place in S3: a bucket, and the keys in it that begin with KeyPrefix ("" is all of them).
type Location struct{ Bucket, KeyPrefix string }

// Config of a [Client] and of [Middleware]. Only Bucket has to be set.
type Config struct {
	// Bucket is where payloads are stored. Required; a name, or the ARN of an access point.
	Bucket string

	// KeyPrefix begins every key, followed by a random UUID; nothing is put between them, so end it with a "/". At most
	// 988 characters of a-z A-Z 0-9 . / _ -, without a "." or "/" at its beginning and without "..", as in Java's
	// library. Give each queue its own: it bounds what a pointer may reach, and what a lifecycle rule expires.
	KeyPrefix string

	// Allow are further places whose pointers are followed on receive and on delete, such as the bucket of a producer in
	// another account. Bucket and KeyPrefix always are.
	Allow []Location

	// Threshold is the size above which a message goes through S3: body and message attributes together. From 1 byte to
	// 1,048,576, or [QueueLimit]; default [DefaultThreshold]. Above the default, producers still pay SQS per 64 KiB, and a
	// queue whose MaximumMessageSize is lower refuses the message.
	Threshold int

	// AlwaysS3 sends every payload through S3, however small.
	AlwaysS3 bool

	// BatchLimit is the most that one SendMessageBatch carries, entries with attributes together. From 1,024 bytes to
	// 1,048,576, which is the default and SQS's limit.
	BatchLimit int

	// Fit says what becomes of a batch above BatchLimit. Default [FitOffload].
	Fit Fit

	// Form is how pointers are written. Default [FormJava2].
	Form Form

	// KMSKeyID encrypts objects with that KMS key (SSE-KMS): id, ARN or alias. Default: as the bucket is set.
	KMSKeyID string
	// Encryption names the kind of encryption, such as aws:kms:dsse or AES256. Default: aws:kms with a KMSKeyID, as the
	// bucket is set without.
	Encryption s3types.ServerSideEncryption
	// BucketKey uses an S3 Bucket Key, which saves most of the calls to KMS.
	BucketKey bool
	// StorageClass of objects. Default STANDARD. The infrequent-access classes bill at least 30 days for each object,
	// Glacier's can't be read at once.
	StorageClass s3types.StorageClass
	// Tags of objects: at most 10, keys of 1 to 128 characters and values of up to 256. They need s3:PutObjectTagging.
	Tags map[string]string
	// ExpectedBucketOwner is the account that must own the bucket: 12 digits. S3 refuses calls when another one does, for
	// example because the bucket was deleted and its name taken.
	ExpectedBucketOwner string

	// KeepPayloads leaves objects in S3 when their messages are deleted: for payloads that several queues share (a fan-out
	// through SNS), or that a lifecycle rule alone removes. Default: an object is removed once SQS has confirmed the
	// deletion of its message.
	KeepPayloads bool

	// IgnoreMissing treats a message whose object doesn't exist as completed before: it is deleted. Java's library calls it
	// ignorePayloadNotFound. Only a certain 404 counts, never a 403, although S3 answers that for a missing object too when
	// s3:ListBucket isn't allowed. Default: such a message is a permanent failure.
	IgnoreMissing bool

	// Stream leaves payloads in S3 until [Open] is called: for payloads that shouldn't be held in memory. Handlers then
	// see the message as it was received.
	Stream bool

	// MaxBody is the largest payload that is loaded into a message's Body. From 1 byte to 2 GiB; default MemoryBudget or
	// 256 MiB, whichever is larger. A larger one is a permanent failure that says so.
	MaxBody int64

	// MaxPayload is the largest payload that is stored or opened as a stream. From 1 byte to 2 GiB, the default.
	MaxPayload int64

	// MemoryBudget is how many bytes of payloads may be in memory at once, for all workers that share this client:
	// loaded ones from before the fetch until the handler has returned, opened ones at their buffer's size until they are
	// closed. Messages wait for room in the order in which they came, held by their heartbeat; one that is larger than the
	// whole budget waits until it is alone. From 1 byte to 1 TiB; default 256 MiB.
	MemoryBudget int64

	// PartSize is the size of the parts in which streams travel. From 5 MiB (S3's least for an upload) to 512 MiB; default
	// 5 MiB. It has to make at most 10,000 parts of MaxPayload.
	PartSize int64

	// PartsInFlight is how many parts of one stream travel at once. From 1 to 64; default 5. A stream needs about
	// (PartsInFlight + 2) × PartSize of memory: 35 MiB by default.
	// More of them make it faster where S3 is far.
	PartsInFlight int

	// OnUnreadable hears of each message that [Client.ReceiveMessage] left out because its payload couldn't be had: with
	// its pointer as body and its raw receipt handle, so that it can be looked at, or sent to where it is kept. It is called
	// by the goroutine that receives. Left out messages come back when their visibility ends.
	OnUnreadable func(ctx context.Context, queueURL string, m types.Message, err error)

	// Logger takes what an operator should read. Default slog.Default(). Never in it: message bodies, receipt handles.
	Logger *slog.Logger

	// MeterProvider takes the metrics that [Metrics] lists. Default: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
}

// withDefaults returns the configuration with every zero field filled in, or all its mistakes.
func (c Config) withDefaults() (Config, error) {
	c.KeyPrefix = strings.TrimSpace(c.KeyPrefix) // as Java's library does
	if err := c.validate(); err != nil {
		return c, err
	}
	setDefault(&c.Threshold, DefaultThreshold)
	setDefault(&c.BatchLimit, MaxMessage)
	setDefault(&c.MemoryBudget, 256<<20)
	setDefault(&c.MaxBody, min(max(c.MemoryBudget, 256<<20), MaxPayload))
	setDefault(&c.MaxPayload, MaxPayload)
	setDefault(&c.PartSize, minPart)
	setDefault(&c.PartsInFlight, 5)
	setDefault(&c.Logger, slog.Default())
	if c.KMSKeyID != "" {
		setDefault(&c.Encryption, s3types.ServerSideEncryptionAwsKms)
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

const (
	minPart  = 5 << 20 // S3's least for all parts but the last
	maxParts = 10_000  // S3's most
)

// validate reports every mistake, not the first one.
func (c Config) validate() error {
	v := &violations{}
	v.bucket("Bucket", c.Bucket)
	v.prefix("KeyPrefix", c.KeyPrefix)
	for i, a := range c.Allow {
		v.bucket(fmt.Sprintf("Allow[%d].Bucket", i), a.Bucket)
	}
	if c.Threshold != QueueLimit {
		v.between("Threshold", int64(c.Threshold), 1, MaxMessage, ", or extended.QueueLimit")
	}
	v.between("BatchLimit", int64(c.BatchLimit), 1024, MaxMessage, "")
	v.between("Fit", int64(c.Fit), 0, int64(FitSplit), "")
	v.between("Form", int64(c.Form), 0, int64(FormJava1), "")
	v.between("MaxBody", c.MaxBody, 1, MaxPayload, "")
	v.between("MaxPayload", c.MaxPayload, 1, MaxPayload, "")
	v.between("MemoryBudget", c.MemoryBudget, 1, 1<<40, "")
	v.between("PartSize", c.PartSize, minPart, 512<<20, "")
	v.between("PartsInFlight", int64(c.PartsInFlight), 1, 64, "")
	v.storage(c)
	return errors.Join(v.errs...)
}

// violations collects what is wrong with a configuration.
type violations struct{ errs []error }

func (v *violations) add(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("extended: Config."+format, args...))
}

func (v *violations) between(field string, value, least, most int64, or string) {
	if value != 0 && (value < least || value > most) {
		v.add("%s is %d: must be from %d to %d%s", field, value, least, most, or)
	}
}

func (v *violations) bucket(field, name string) {
	switch {
	case name == "":
		v.add("%s is empty: name the bucket for payloads", field)
	case strings.ContainsAny(name, " \t\r\n\"\\") || (strings.Contains(name, "/") && !strings.HasPrefix(name, "arn:")):
		v.add("%s is %q: must be a bucket's name or an access point's ARN; prefixes go into KeyPrefix", field, name)
	}
}

// maxPrefix leaves 36 characters for the UUID in S3's 1,024.
const maxPrefix = 988

func (v *violations) prefix(field, prefix string) {
	if len(prefix) > maxPrefix {
		v.add("%s has %d characters: must have at most %d", field, len(prefix), maxPrefix)
	}
	if strings.HasPrefix(prefix, ".") || strings.HasPrefix(prefix, "/") {
		v.add("%s is %q: must not begin with %q", field, prefix, prefix[:1])
	}
	if strings.Contains(prefix, "..") {
		v.add("%s is %q: must not have %q in it", field, prefix, "..")
	}
	if i := strings.IndexFunc(prefix, func(r rune) bool { return !isKeyCharacter(r) }); i >= 0 {
		v.add("%s is %q: must be of a-z A-Z 0-9 . / _ - only", field, prefix)
	}
}

func isKeyCharacter(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./_-", r)
}

func (v *violations) storage(c Config) {
	if len(c.Tags) > 10 {
		v.add("Tags are %d: S3 takes at most 10", len(c.Tags))
	}
	for key, value := range c.Tags {
		if n := len([]rune(key)); n < 1 || n > 128 {
			v.add("Tags[%q]: the key has %d characters, must have from 1 to 128", key, n)
		}
		if n := len([]rune(value)); n > 256 {
			v.add("Tags[%q]: the value has %d characters, must have at most 256", key, n)
		}
	}
	if o := c.ExpectedBucketOwner; o != "" && (len(o) != 12 || strings.Trim(o, "0123456789") != "") {
		v.add("ExpectedBucketOwner is %q: must be an account id of 12 digits", o)
	}
	if c.KMSKeyID != "" && c.Encryption == s3types.ServerSideEncryptionAes256 {
		v.add("Encryption is %s: doesn't go with a KMSKeyID", c.Encryption)
	}
}
