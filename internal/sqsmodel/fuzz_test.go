package sqsmodel_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// FuzzRequest sends anything as any action: no panic, always JSON, and a status
// that SQS answers.
func FuzzRequest(f *testing.F) {
	const queue = `"QueueUrl":"https://sqs.us-east-1.amazonaws.com/123456789012/work"`
	for action, bodies := range map[string][]string{
		"CreateQueue":                  {`{"QueueName":"other","Attributes":{"DelaySeconds":"1"},"tags":{"a":"b"}}`, `{"QueueName":"x.fifo","Attributes":{"FifoQueue":"true"}}`},
		"DeleteQueue":                  {`{` + queue + `}`},
		"GetQueueUrl":                  {`{"QueueName":"work"}`},
		"ListQueues":                   {`{"MaxResults":1,"NextToken":"d29yaw=="}`},
		"PurgeQueue":                   {`{` + queue + `}`},
		"GetQueueAttributes":           {`{` + queue + `,"AttributeNames":["All"]}`},
		"SetQueueAttributes":           {`{` + queue + `,"Attributes":{"RedrivePolicy":"{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:123456789012:dlq\",\"maxReceiveCount\":1}"}}`, `{` + queue + `,"Attributes":{"RedriveAllowPolicy":"{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[\"x\"]}","Policy":"{}"}}`},
		"SendMessage":                  {`{` + queue + `,"MessageBody":"m","DelaySeconds":0,"MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"AAE="}},"MessageSystemAttributes":{"AWSTraceHeader":{"DataType":"String","StringValue":"x"}}}`},
		"SendMessageBatch":             {`{` + queue + `,"Entries":[{"Id":"a","MessageBody":"m"},{"Id":"b","MessageBody":"\u0000"}]}`, `{` + queue + `,"Entries":[null]}`},
		"ReceiveMessage":               {`{` + queue + `,"MaxNumberOfMessages":10,"WaitTimeSeconds":0,"VisibilityTimeout":0,"MessageSystemAttributeNames":["All"],"MessageAttributeNames":["a.*"]}`},
		"DeleteMessage":                {`{` + queue + `,"ReceiptHandle":"AQEBAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`},
		"DeleteMessageBatch":           {`{` + queue + `,"Entries":[{"Id":"a","ReceiptHandle":"x"}]}`},
		"ChangeMessageVisibility":      {`{` + queue + `,"ReceiptHandle":"x","VisibilityTimeout":-1}`},
		"ChangeMessageVisibilityBatch": {`{` + queue + `,"Entries":[{"Id":"a","ReceiptHandle":"x","VisibilityTimeout":99999}]}`},
		"ListDeadLetterSourceQueues":   {`{` + queue + `}`},
		"StartMessageMoveTask":         {`{"SourceArn":"arn:aws:sqs:us-east-1:123456789012:dlq","MaxNumberOfMessagesPerSecond":500}`},
		"ListMessageMoveTasks":         {`{"SourceArn":"arn:aws:sqs:us-east-1:123456789012:dlq"}`},
		"CancelMessageMoveTask":        {`{"TaskHandle":"e30="}`},
		"TagQueue":                     {`{` + queue + `,"Tags":{"a":"b"}}`},
		"UntagQueue":                   {`{` + queue + `,"TagKeys":["a"]}`},
		"ListQueueTags":                {`{` + queue + `}`},
		"AddPermission":                {`{` + queue + `,"Label":"l","AWSAccountIds":["1"],"Actions":["*"]}`},
		"RemovePermission":             {`{` + queue + `,"Label":"l"}`},
		"Dance":                        {``, `{`, `[]`, `null`, `{"QueueUrl":"://"}`},
	} {
		for _, body := range bodies {
			f.Add(action, body)
		}
	}
	f.Fuzz(func(t *testing.T, action, body string) {
		s := sqsmodel.New(sqsmodel.Config{})
		dlq := s.MustCreateQueue("dlq", nil)
		url := s.MustCreateQueue("work", map[string]string{"RedrivePolicy": redrive("dlq", 1)})
		s.MustSend(url, "m")
		s.MustSend(dlq, "m")
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // a long poll must not keep the fuzzer waiting…
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "https://sqs/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.ToLower(body), "waittimeseconds") || strings.Contains(strings.ToLower(body), "receivemessagewait") {
			req = req.WithContext(ctx) // …and what comes before it has run without one
		}
		req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
		res, err := s.Do(req)
		if err != nil {
			return // the cancelled context
		}
		text := readAll(t, res)
		if !json.Valid([]byte(text)) {
			t.Fatalf("no JSON: %q", text)
		}
		switch res.StatusCode {
		case 200, 400, 403, 404:
		default:
			t.Fatalf("%d: %s", res.StatusCode, text)
		}
		if err := s.Consistent(); err != nil {
			t.Fatal(err)
		}
	})
}
