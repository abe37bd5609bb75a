package extended

import (
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Retention is how long messages can live, and payloads have to.
type Retention struct {
	// Source is the queue's MessageRetentionPeriod. Default 14 days, the longest that SQS takes.
	Source time.Duration
	// DeadLetter is the dead-letter queue's. Default 14 days. It is counted in full, because a FIFO queue's messages begin
	// their retention anew in it.
	DeadLetter time.Duration
	// Redrive is how long messages live that were moved back from the dead-letter queue, which begins their retention anew.
	// Default: Source, so that one redrive is covered; give a multiple for more.
	Redrive time.Duration
}

const maxRetention = 14 * 24 * time.Hour

// LifecycleRule removes payloads that no message can point to any more: what a crash, a lost answer or a failed removal left
// behind, and parts of uploads that were broken off. With the default retention, after 43 days. It is for the keys of one
// [Config] (give it Config.KeyPrefix); on a bucket with versions, removed ones are expired a day later.
//
// PutBucketLifecycleConfiguration replaces all rules of a bucket: read them first, and add this one, which has an ID of its
// own. A rule that is shorter than the messages live loses payloads: change both together.
func LifecycleRule(keyPrefix string, r Retention) s3types.LifecycleRule {
	setDefault(&r.Source, maxRetention)
	setDefault(&r.DeadLetter, maxRetention)
	setDefault(&r.Redrive, r.Source)
	const day = 24 * time.Hour
	total := max(r.Source, 0) + max(r.DeadLetter, 0) + max(r.Redrive, 0)
	days := int32((total+day-1)/day) + 1 // S3 counts in days, and a payload is older than its message
	return s3types.LifecycleRule{
		ID:                             aws.String(ruleID(keyPrefix)),
		Status:                         s3types.ExpirationStatusEnabled,
		Filter:                         &s3types.LifecycleRuleFilter{Prefix: aws.String(keyPrefix)},
		Expiration:                     &s3types.LifecycleExpiration{Days: aws.Int32(days)},
		NoncurrentVersionExpiration:    &s3types.NoncurrentVersionExpiration{NoncurrentDays: aws.Int32(1)},
		AbortIncompleteMultipartUpload: &s3types.AbortIncompleteMultipartUpload{DaysAfterInitiation: aws.Int32(1)},
	}
}

// ruleID names the rule, in S3's at most 255 characters.
func ruleID(keyPrefix string) string {
	id := "sqs-payloads"
	if keyPrefix != "" {
		id += "-" + strings.Trim(strings.ReplaceAll(keyPrefix, "/", "-"), "-")
	}
	return id[:min(len(id), 255)]
}
