package extended_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestEveryMistakeOfAConfigurationIsNamed(t *testing.T) {
	tags := map[string]string{}
	for i := range 11 {
		tags[strings.Repeat("k", 129+i)] = strings.Repeat("v", 257)
	}
	_, err := extended.New(nil, nil, extended.Config{
		Bucket: "a/b", KeyPrefix: "/..x y", Allow: []extended.Location{{}}, Threshold: extended.MaxMessage + 1, BatchLimit: 1, Fit: 7, Form: -1,
		MaxBody: extended.MaxPayload + 1, MaxPayload: -1, MemoryBudget: -1, PartSize: 1, PartsInFlight: 65, Tags: tags, ExpectedBucketOwner: "12",
		KMSKeyID: "k", Encryption: s3types.ServerSideEncryptionAes256,
	})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		"no SQS client", "no S3 client", `Config.Bucket is "a/b"`, `begin with "/"`, `have ".." in it`, "be of a-z", "Allow[0].Bucket is empty", "Threshold is 1048577: must be from 1 to 1048576, or extended.QueueLimit",
		"BatchLimit is 1:", "Fit is 7", "Form is -1", "MaxBody is 2147483649", "MaxPayload is -1", "MemoryBudget is -1", "PartSize is 1:", "PartsInFlight is 65", "Tags are 11", "257 characters",
		`ExpectedBucketOwner is "12"`, "doesn't go with a KMSKeyID",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't in\n%v", want, err)
		}
	}
}

func TestKeyPrefixesFollowJavasRules(t *testing.T) {
	q, o := sqsmodel.New(sqsmodel.Config{}).Client(), newObjects(t).client()
	for prefix, ok := range map[string]bool{
		"": true, " orders/ ": true, "a.b_c-d/E9": true, strings.Repeat("k", 988): true,
		strings.Repeat("k", 989): false, ".a": false, "/a": false, "a..b": false, "a b": false, "ü": false, "a+": false,
	} {
		if _, err := extended.New(q, o, extended.Config{Bucket: "b", KeyPrefix: prefix}); (err == nil) != ok {
			t.Errorf("%.20q: %v", prefix, err)
		}
	}
}

func TestTheLifecycleRuleOutlivesEveryMessage(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		retention extended.Retention
		days      int32
	}{
		{extended.Retention{}, 43},
		{extended.Retention{Source: 4 * day, DeadLetter: 14 * day}, 23},
		{extended.Retention{Source: time.Hour, DeadLetter: time.Hour, Redrive: time.Hour}, 2},
		{extended.Retention{Source: 4 * day, DeadLetter: 14 * day, Redrive: 12*day + 1}, 32},
	} {
		rule := extended.LifecycleRule("orders/", c.retention)
		if *rule.Expiration.Days != c.days || *rule.Filter.Prefix != "orders/" || rule.Status != s3types.ExpirationStatusEnabled ||
			aws.ToInt32(rule.AbortIncompleteMultipartUpload.DaysAfterInitiation) != 1 || aws.ToInt32(rule.NoncurrentVersionExpiration.NoncurrentDays) != 1 {
			t.Errorf("%+v: %d days", c.retention, *rule.Expiration.Days)
		}
	}
	if a, b := extended.LifecycleRule("a/", extended.Retention{}), extended.LifecycleRule("b/", extended.Retention{}); *a.ID == *b.ID {
		t.Error("two rules with one ID")
	}
	if id := *extended.LifecycleRule(strings.Repeat("k", 988), extended.Retention{}).ID; len(id) > 255 {
		t.Errorf("an ID of %d characters", len(id))
	}
}
