package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// EnsureClient is what [Ensure] calls. *sqs.Client has it. A dry run needs no sqs:CreateQueue and no sqs:SetQueueAttributes.
type EnsureClient interface {
	attributesClient
	CreateQueue(context.Context, *sqs.CreateQueueInput, ...func(*sqs.Options)) (*sqs.CreateQueueOutput, error)
	GetQueueUrl(context.Context, *sqs.GetQueueUrlInput, ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error)
	SetQueueAttributes(context.Context, *sqs.SetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.SetQueueAttributesOutput, error)
	ListDeadLetterSourceQueues(context.Context, *sqs.ListDeadLetterSourceQueuesInput, ...func(*sqs.Options)) (*sqs.ListDeadLetterSourceQueuesOutput, error)
}

// Defaults of [Ensure].
const (
	DefaultMaxReceiveCount = 5
	DefaultDLQRetention    = maxRetention
	DefaultWait            = 20 * time.Second
)

// Spec says which queues there should be. Only Name has to be set. What is zero is repaired only where it would hurt: a queue that
// somebody has set up otherwise on purpose stays so. What is set is made so.
type Spec struct {
	// Name of the queue. One that ends in .fifo is a FIFO queue.
	Name string
	// DeadLetterQueue is its dead-letter queue's name. Default: the one that the redrive policy names; without a policy Name and "-dlq".
	DeadLetterQueue string

	// MaxReceiveCount from 1 to 1,000. Default 5; an existing one from 3 to 10 stays.
	MaxReceiveCount int
	// DeadLetterRetention is for how long the dead-letter queue keeps messages. Whole seconds from 1 minute to 14 days; default 14 days.
	DeadLetterRetention time.Duration
	// Wait is ReceiveMessageWaitTimeSeconds of both queues. Whole seconds from 1 s to 20 s; default 20 s where it is 0.
	Wait time.Duration
	// Retention is for how long the queue keeps messages. Whole seconds from 1 minute to 14 days; default SQS's own 4 days for a new queue;
	// an existing one stays.
	Retention time.Duration
	// Visibility is the queue's VisibilityTimeout. Whole seconds up to 12 h; default SQS's own 30 s for a new queue; an existing one stays.
	Visibility time.Duration
	// Attributes are further attributes of the queue, DeadLetterAttributes of its dead-letter queue, such as KmsMasterKeyId or
	// ContentBasedDeduplication, by SQS's names. Those that this struct has fields for can't be among them.
	Attributes, DeadLetterAttributes map[string]string
	// Tags of queues that are created.
	Tags map[string]string

	// DryRun reports the difference and changes nothing.
	DryRun bool
}

// Change is one difference between what is and what should be.
type Change struct {
	Queue string `json:"queue"`
	// Attribute is what changes; empty when the queue is created.
	Attribute string `json:"attribute,omitempty"`
	// From is empty when it wasn't set.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Why  string `json:"why"`
}

// String is the change in one line.
func (c Change) String() string {
	switch {
	case c.Attribute == "":
		return fmt.Sprintf("create %s: %s", c.Queue, c.Why)
	case c.From == "":
		return fmt.Sprintf("%s: set %s to %s: %s", c.Queue, c.Attribute, c.To, c.Why)
	}
	return fmt.Sprintf("%s: change %s from %s to %s: %s", c.Queue, c.Attribute, c.From, c.To, c.Why)
}

// Ensured is what [Ensure] found and did.
type Ensured struct {
	// Changes in the order in which they were made, or would be.
	Changes []Change `json:"changes"`
	// Notes say what was left as it is though it could be better.
	Notes []string `json:"notes,omitempty"`
	// QueueURL and DeadLetterQueueURL are empty as long as the queue doesn't exist.
	QueueURL           string `json:"queueUrl,omitempty"`
	DeadLetterQueueURL string `json:"deadLetterQueueUrl,omitempty"`
	DryRun             bool   `json:"dryRun,omitempty"`
}

// Ensure creates a queue and its dead-letter queue with safe defaults, or repairs them: long polls of 20 s; 14 days of retention in the
// dead-letter queue; a redrive policy with a maxReceiveCount of 5; and a redrive allow policy byQueue, which lists the queue along with
// those that use the dead-letter queue already. Doing it again changes nothing. With Spec.DryRun it only tells what it would do.
//
// It never lowers a retention that Spec doesn't set, and never deletes anything. If it fails half-way it can be repeated: the dead-letter queue comes
// first, the redrive policy last. SQS takes up to a minute to apply attributes, and up to 15 minutes a retention.
func Ensure(ctx context.Context, c EnsureClient, s Spec) (*Ensured, error) {
	err := s.validate()
	if isNil(c) {
		err = errors.Join(errNoClient, err)
	}
	if err != nil {
		return nil, err
	}
	e := &ensuring{client: c, spec: s, result: &Ensured{DryRun: s.DryRun}}
	return e.result, e.run(ctx)
}

func (s Spec) validate() error {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, fmt.Errorf("dlq: Spec.%s is %v: must be %s", field, value, bound))
	}
	name := func(field, value string) {
		base, _ := strings.CutSuffix(value, ".fifo")
		bare := strings.IndexFunc(base, func(r rune) bool {
			return !(r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
		}) < 0
		if base == "" || len(value) > 80 || !bare {
			bad(field, strconv.Quote(value), "a queue's name: 1 to 80 letters, digits, hyphens and underscores, and .fifo at the end for a FIFO queue")
		}
	}
	seconds := func(field string, value, least, most time.Duration) {
		if value != 0 && (value < least || value > most || value%time.Second != 0) {
			bad(field, value, fmt.Sprintf("whole seconds from %v to %v", least, most))
		}
	}
	name("Name", s.Name)
	if s.DeadLetterQueue != "" {
		name("DeadLetterQueue", s.DeadLetterQueue)
		if isFIFO(s.Name) != isFIFO(s.DeadLetterQueue) {
			bad("DeadLetterQueue", strconv.Quote(s.DeadLetterQueue), "of the same type as the queue: both end in .fifo, or none")
		}
		if s.Name == s.DeadLetterQueue {
			bad("DeadLetterQueue", strconv.Quote(s.DeadLetterQueue), "another queue than Name")
		}
	}
	if s.MaxReceiveCount < 0 || s.MaxReceiveCount > 1000 {
		bad("MaxReceiveCount", s.MaxReceiveCount, "from 1 to 1000")
	}
	seconds("DeadLetterRetention", s.DeadLetterRetention, time.Minute, maxRetention)
	seconds("Retention", s.Retention, time.Minute, maxRetention)
	seconds("Wait", s.Wait, time.Second, 20*time.Second)
	seconds("Visibility", s.Visibility, time.Second, 12*time.Hour)
	for field, attributes := range map[string]map[string]string{"Attributes": s.Attributes, "DeadLetterAttributes": s.DeadLetterAttributes} {
		for _, a := range []string{"RedrivePolicy", "RedriveAllowPolicy", "FifoQueue", "MessageRetentionPeriod", "ReceiveMessageWaitTimeSeconds", "VisibilityTimeout"} {
			if _, ok := attributes[a]; ok && !(field == "DeadLetterAttributes" && a == "VisibilityTimeout") {
				bad(field, a, "without what Spec has a field for")
			}
		}
	}
	return errors.Join(errs...)
}

func isFIFO(name string) bool { return strings.HasSuffix(name, ".fifo") }

// ensuring is one Ensure under way.
type ensuring struct {
	client EnsureClient
	spec   Spec
	result *Ensured

	source, dead *queue // nil: doesn't exist (yet)
	deadName     string
}

func (e *ensuring) run(ctx context.Context) (err error) {
	if e.source, err = e.find(ctx, e.spec.Name); err != nil {
		return err
	}
	if e.deadName, err = e.chooseDeadLetterQueue(); err != nil {
		return err
	}
	if e.dead, err = e.find(ctx, e.deadName); err != nil {
		return err
	}
	if e.dead, err = e.have(ctx, e.dead, e.deadName, e.deadAttributes(), "the dead-letter queue"); err != nil {
		return err
	}
	if e.source, err = e.have(ctx, e.source, e.spec.Name, e.sourceAttributes(), "the queue"); err != nil {
		return err
	}
	// The allow policy before the redrive policy: SQS looks at it when that one is set.
	if err := e.allow(ctx); err != nil {
		return err
	}
	if err := e.policy(ctx); err != nil {
		return err
	}
	if e.source != nil {
		e.result.QueueURL = e.source.url
	}
	if e.dead != nil {
		e.result.DeadLetterQueueURL = e.dead.url
	}
	e.noteTrap()
	return nil
}

// noteTrap: what one setting alone can't mend.
func (e *ensuring) noteTrap() {
	source, dead := 4*24*time.Hour, DefaultDLQRetention
	if e.source != nil {
		source = e.source.retention()
	}
	setDefault(&e.spec.DeadLetterRetention, dead)
	if e.spec.Retention > 0 {
		source = e.spec.Retention
	}
	if !isFIFO(e.spec.Name) && source >= e.spec.DeadLetterRetention {
		e.result.Notes = append(e.result.Notes, fmt.Sprintf("%s keeps messages for %s and %s for %s: one that waited long expires soon after it was dead-lettered; lower Spec.Retention", e.spec.Name, days(source), e.deadName, days(e.spec.DeadLetterRetention)))
	}
}

// find returns nil when there is no such queue.
func (e *ensuring) find(ctx context.Context, name string) (*queue, error) {
	out, err := e.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, explain(err, "GetQueueUrl", name)
	}
	return e.read(ctx, aws.ToString(out.QueueUrl))
}

// read reads a queue's settings; a new one can take a second until it is there.
func (e *ensuring) read(ctx context.Context, url string) (*queue, error) {
	for failures := 1; ; failures++ {
		q, err := readQueue(ctx, e.client, url)
		if err == nil || !isMissing(err) || failures == 5 || !again(ctx, failures+2) {
			return q, explain(err, "GetQueueAttributes", url)
		}
	}
}

func (e *ensuring) chooseDeadLetterQueue() (string, error) {
	if e.spec.DeadLetterQueue != "" {
		return e.spec.DeadLetterQueue, nil
	}
	name := strings.TrimSuffix(e.spec.Name, ".fifo") + "-dlq"
	if isFIFO(e.spec.Name) {
		name += ".fifo"
	}
	if e.source != nil {
		policy, err := e.source.redrivePolicy()
		own, _ := parseARN(e.source.arn)
		switch {
		case err != nil:
			return name, nil // it is replaced
		case policy != nil:
			if to, _ := parseARN(policy.DeadLetterTargetArn); to.account == own.account && to.region == own.region && isFIFO(to.name) == e.source.fifo {
				return to.name, nil
			}
		}
	}
	if len(name) > 80 {
		return "", fmt.Errorf("dlq: Spec.Name is %q: with -dlq it is longer than the 80 characters that SQS takes: set Spec.DeadLetterQueue", e.spec.Name)
	}
	return name, nil
}

// wish is an attribute as it should be.
type wish struct {
	attribute, value, why string
	good                  func(now string) bool // tells a value that may stay; nil: only value may
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func atLeast(d time.Duration) func(string) bool {
	return func(now string) bool {
		n, err := strconv.Atoi(now)
		return err == nil && time.Duration(n)*time.Second >= d
	}
}

func (e *ensuring) waitWish() wish {
	w := wish{attribute: "ReceiveMessageWaitTimeSeconds", value: seconds(DefaultWait), why: "long polls: fewer requests, and no message overlooked", good: atLeast(time.Second)}
	if e.spec.Wait > 0 {
		w.value, w.good = seconds(e.spec.Wait), nil
	}
	return w
}

func (e *ensuring) deadAttributes() []wish {
	retention := wish{attribute: "MessageRetentionPeriod", value: seconds(DefaultDLQRetention), why: "time to find out and repair: on a standard queue a message's age counts from its first sending", good: atLeast(DefaultDLQRetention)}
	if d := e.spec.DeadLetterRetention; d > 0 {
		retention.value, retention.good = seconds(d), nil
	}
	return append([]wish{retention, e.waitWish()}, asked(e.spec.DeadLetterAttributes)...)
}

func (e *ensuring) sourceAttributes() []wish {
	wishes := []wish{e.waitWish()}
	if e.spec.Retention > 0 {
		wishes = append(wishes, wish{attribute: "MessageRetentionPeriod", value: seconds(e.spec.Retention), why: "asked for"})
	}
	if e.spec.Visibility > 0 {
		wishes = append(wishes, wish{attribute: "VisibilityTimeout", value: seconds(e.spec.Visibility), why: "asked for"})
	}
	return append(wishes, asked(e.spec.Attributes)...)
}

func asked(attributes map[string]string) (wishes []wish) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		wishes = append(wishes, wish{attribute: name, value: attributes[name], why: "asked for", good: func(now string) bool { return sameJSON(now, attributes[name]) }})
	}
	return wishes
}

// sameJSON compares policies by what they say.
func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return a == b
	}
	ra, _ := json.Marshal(x)
	rb, _ := json.Marshal(y)
	return string(ra) == string(rb)
}

// have creates a queue or repairs its attributes. In a dry run a queue that doesn't exist stays nil.
func (e *ensuring) have(ctx context.Context, q *queue, name string, wishes []wish, what string) (*queue, error) {
	if q == nil {
		return e.create(ctx, name, wishes, what)
	}
	changed := map[string]string{}
	for _, w := range wishes {
		now := q.attributes[w.attribute]
		if now == w.value || w.good != nil && w.good(now) {
			continue
		}
		changed[w.attribute] = w.value
		e.result.Changes = append(e.result.Changes, Change{Queue: name, Attribute: w.attribute, From: now, To: w.value, Why: w.why})
	}
	return q, e.set(ctx, q, changed)
}

func (e *ensuring) create(ctx context.Context, name string, wishes []wish, what string) (*queue, error) {
	attributes := map[string]string{}
	e.result.Changes = append(e.result.Changes, Change{Queue: name, Why: what + " doesn't exist"})
	if isFIFO(name) {
		attributes["FifoQueue"] = "true"
	}
	for _, w := range wishes {
		attributes[w.attribute] = w.value
		e.result.Changes = append(e.result.Changes, Change{Queue: name, Attribute: w.attribute, To: w.value, Why: w.why})
	}
	if e.spec.DryRun {
		return nil, nil
	}
	out, err := e.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes, Tags: e.spec.Tags})
	if codeOf(err) == "QueueDeletedRecently" {
		return nil, fmt.Errorf("dlq: queue %s was deleted less than 60 s ago: SQS keeps its name for that long; try again: %w", name, err)
	}
	if err != nil {
		return nil, explain(err, "CreateQueue", name)
	}
	return e.read(ctx, aws.ToString(out.QueueUrl))
}

func (e *ensuring) set(ctx context.Context, q *queue, changed map[string]string) error {
	if len(changed) == 0 || e.spec.DryRun {
		return nil
	}
	_, err := e.client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: &q.url, Attributes: changed})
	if err != nil {
		return explain(err, "SetQueueAttributes", q.url)
	}
	maps.Copy(q.attributes, changed)
	return nil
}

// sourceARN is known or, in a dry run before the queue exists, made of its dead-letter queue's.
func (e *ensuring) arnOf(q *queue, name string) string {
	other := e.source
	if q == nil && other == nil {
		other = e.dead
	}
	switch {
	case q != nil:
		return q.arn
	case other != nil:
		return strings.TrimSuffix(other.arn, other.name) + name
	}
	return "(ARN of " + name + ")"
}

// allow lets the queue, and whoever uses the dead-letter queue already, name it; and nobody else.
func (e *ensuring) allow(ctx context.Context) error {
	sourceARN := e.arnOf(e.source, e.spec.Name)
	want := allowPolicy{Permission: byQueue, Sources: []string{sourceARN}}
	from := ""
	if e.dead != nil {
		from = e.dead.attributes["RedriveAllowPolicy"]
		now, err := e.dead.allowPolicy()
		if err == nil && now.Permission == byQueue {
			if now.allows(sourceARN) {
				return nil
			}
			want.Sources = append(now.Sources, sourceARN)
		} else {
			urls, err := sourcesOf(ctx, e.client, e.dead.url)
			if err != nil {
				return explain(err, "ListDeadLetterSourceQueues", e.dead.url)
			}
			for _, url := range urls {
				want.Sources = append(want.Sources, strings.TrimSuffix(e.dead.arn, e.dead.name)+nameOf(url))
			}
			slices.Sort(want.Sources)
			want.Sources = slices.Compact(want.Sources)
		}
		if len(want.Sources) > maxAllowedSources {
			return e.tooManySources(now, len(want.Sources))
		}
	}
	text, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("dlq: redrive allow policy: %w", err)
	}
	e.result.Changes = append(e.result.Changes, Change{Queue: e.deadName, Attribute: "RedriveAllowPolicy", From: from, To: string(text), Why: "only the queues that use it may name it as theirs"})
	return e.set(ctx, e.dead, map[string]string{"RedriveAllowPolicy": string(text)})
}

// tooManySources: SQS takes ten in a list, and a dead-letter queue that all may use stays so.
func (e *ensuring) tooManySources(now allowPolicy, n int) error {
	if now.Permission == allowAll {
		e.result.Notes = append(e.result.Notes, fmt.Sprintf("%s is the dead-letter queue of %d queues, and a redrive allow policy lists at most %d: it stays open to all queues of the account", e.deadName, n, maxAllowedSources))
		return nil
	}
	return fmt.Errorf("dlq: %s would be the dead-letter queue of %d queues, and its redrive allow policy is %s, which lists at most %d: give this queue another one with Spec.DeadLetterQueue, or set redrivePermission to allowAll", e.deadName, n, now.Permission, maxAllowedSources)
}

// policy is the redrive policy of the queue.
func (e *ensuring) policy(ctx context.Context) error {
	deadARN := e.arnOf(e.dead, e.deadName)
	count := DefaultMaxReceiveCount
	from, why := "", "messages that always fail are kept for a look instead of coming back until they expire"
	if e.source != nil {
		from = e.source.attributes["RedrivePolicy"]
		if now, err := e.source.redrivePolicy(); err == nil && now != nil {
			if n := now.MaxReceiveCount; n >= 3 && n <= 10 {
				count = n
			}
			if e.spec.MaxReceiveCount > 0 {
				count = e.spec.MaxReceiveCount
			}
			if now.DeadLetterTargetArn == deadARN && now.MaxReceiveCount == count {
				return nil
			}
			why = "a maxReceiveCount that good messages survive and bad ones don't"
			if now.DeadLetterTargetArn != deadARN {
				why = "its dead-letter queue is to be " + e.deadName
			}
		}
	}
	if e.spec.MaxReceiveCount > 0 {
		count = e.spec.MaxReceiveCount
	}
	text := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, deadARN, count)
	e.result.Changes = append(e.result.Changes, Change{Queue: e.spec.Name, Attribute: "RedrivePolicy", From: from, To: text, Why: why})
	return e.set(ctx, e.source, map[string]string{"RedrivePolicy": text})
}
