package sqsmodel

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

const maxPage = 1000

func (s *Server) createQueue(x *exchange, in *sqs.CreateQueueInput) (reply, error) {
	name := value(in.QueueName)
	if err := checkQueueName(name, in.Attributes); err != nil {
		return nil, err
	}
	if q := s.queues[name]; q != nil {
		for k, v := range in.Attributes {
			if !sameValue(q.attribute(k), v) {
				return nil, fail("QueueNameExists", "A queue already exists with the same name and a different value for attribute %s", k)
			}
		}
		return object{text("QueueUrl", q.url)}, nil
	}
	if at, ok := s.deleted[name]; ok && x.now.Before(at.Add(s.cfg.QueueDeletedWait)) {
		return nil, fail("QueueDeletedRecently")
	}
	q := s.newQueue(name, x.now)
	if err := s.setAttributes(q, in.Attributes); err != nil {
		return nil, err
	}
	for k, v := range in.Tags {
		q.tags[k] = v
	}
	delete(s.deleted, name)
	s.queues[name], s.byURL[q.url] = q, q
	return object{text("QueueUrl", q.url)}, nil
}

func checkQueueName(name string, attrs map[string]string) *apiError {
	if name == "" {
		return missing("QueueName")
	}
	base, fifo := strings.CutSuffix(name, ".fifo")
	if len(name) > 80 || base == "" || strings.IndexFunc(base, func(r rune) bool { return !wordRune(r) }) >= 0 ||
		fifo && attrs["FifoQueue"] != "true" {
		return fail("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	if !fifo && attrs["FifoQueue"] == "true" {
		return fail("InvalidParameterValue", "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix and be 1 to 80 in length.")
	}
	return nil
}

func (s *Server) getQueueURL(x *exchange, in *sqs.GetQueueUrlInput) (reply, error) {
	if value(in.QueueName) == "" {
		return nil, missing("QueueName")
	}
	owner := in.QueueOwnerAWSAccountId
	q := s.queues[*in.QueueName]
	if q == nil || owner != nil && *owner != s.cfg.AccountID {
		return nil, fail("QueueDoesNotExist")
	}
	return object{text("QueueUrl", q.url)}, nil
}

// sameValue compares attributes; policies by what they say.
func sameValue(a, b string) bool {
	if a == b {
		return true
	}
	var x, y map[string]any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

func (s *Server) listQueues(x *exchange, in *sqs.ListQueuesInput) (reply, error) {
	var urls []string
	for _, q := range s.sortedQueues() {
		if strings.HasPrefix(q.name, value(in.QueueNamePrefix)) {
			urls = append(urls, q.url)
		}
	}
	return page("QueueUrls", urls, in.MaxResults, in.NextToken)
}

func (s *Server) listDeadLetterSourceQueues(x *exchange, in *sqs.ListDeadLetterSourceQueuesInput) (reply, error) {
	var urls []string
	for _, q := range s.sortedQueues() {
		if q.settings.deadLetterARN == x.queue.arn {
			urls = append(urls, q.url)
		}
	}
	return page("queueUrls", urls, in.MaxResults, in.NextToken)
}

// page answers a part of a sorted list. Only a caller that sets MaxResults gets
// a token; its token is the last entry it has seen.
func page(name string, urls []string, limit *int32, token *string) (reply, error) {
	n := maxPage
	if limit != nil {
		if *limit < 1 || *limit > maxPage {
			return nil, invalidValue(*limit, "MaxResults", "Must be an integer from 1 to 1000, if provided.")
		}
		n = int(*limit)
	}
	if token != nil && *token != "" {
		if limit == nil {
			return nil, fail("InvalidParameterValue", "MaxResults is a required parameter with NextToken.")
		}
		last, err := base64.StdEncoding.DecodeString(*token)
		if err != nil {
			return nil, fail("InvalidParameterValue", "Invalid or expired next token.")
		}
		for len(urls) > 0 && urls[0] <= string(last) {
			urls = urls[1:]
		}
	}
	out := object{}
	if len(urls) > n {
		urls = urls[:n]
		if limit != nil {
			out = append(out, text("NextToken", base64.StdEncoding.EncodeToString([]byte(urls[n-1]))))
		}
	}
	if name == "queueUrls" || len(urls) > 0 {
		out = append(out, texts(name, urls))
	}
	return out, nil
}

// deleteQueue takes the messages with it; open polls end with QueueDoesNotExist.
func (s *Server) deleteQueue(x *exchange, _ *sqs.DeleteQueueInput) (reply, error) {
	q := x.queue
	s.clear(q, x)
	delete(s.queues, q.name)
	delete(s.byURL, q.url)
	s.deleted[q.name] = x.now
	for _, p := range q.polls {
		p.err = fail("QueueDoesNotExist")
		s.wakes = append(s.wakes, p.wake)
	}
	q.polls = nil
	return empty{}, nil
}

// purgeQueue deletes everything, also what is in flight, and forgets the
// deduplication ids. AWS takes up to a minute for it; here it is done at once.
func (s *Server) purgeQueue(x *exchange, _ *sqs.PurgeQueueInput) (reply, error) {
	q := x.queue
	if !q.purged.IsZero() && x.now.Before(q.purged.Add(s.cfg.PurgeInterval)) {
		return nil, fail("PurgeQueueInProgress", "Only one PurgeQueue operation on %s is allowed every 60 seconds.", q.name)
	}
	q.purged = x.now
	s.clear(q, x)
	q.dedup = deduplication{}
	q.attempts = attempts{}
	return empty{}, nil
}

func (s *Server) clear(q *queue, x *exchange) {
	for q.byAge.top() != nil {
		m := q.byAge.top()
		s.emit(q, m, Purged, x.now, "", 0)
		s.remove(q, m)
	}
}
