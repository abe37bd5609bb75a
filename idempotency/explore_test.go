package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sqsworker/sqsworker/idempotency"
)

// The exploration plays every order in which two workers, with two attempts each, can go through the steps of an attempt: claim,
// effect, renewal, completion, delete; with a crash before or after each call, an answer that is lost once (the SDK tries again)
// or for good, a request that never arrives, a handler that fails before or after its effect, and leases that end at any point.
// The code is the real one down to the SDK's client, the expressions are evaluated by minidyn. Each state is explored once.

// Besides mostFaults.
const (
	mostAdvances = 2 // how often leases may end on one path
	attemptsEach = 2
)

// move is one step on a path.
type move struct {
	actor int // a worker; len(workers) is time
	how   string
}

func (m move) String() string { return fmt.Sprintf("%c:%s", "ABT"[m.actor], m.how) }

// actor is one worker.
type actor struct {
	attempt int    // begun so far
	step    string // what it does next: "" is to begin an attempt
	claim   *idempotency.Claim
	renewed bool
	failing error // what its handler returns
}

// world is where a path leads to.
type world struct {
	d       *dynamo
	reader  *dynamodb.Client
	guard   *idempotency.Guard
	store   *idempotency.DynamoStore
	commits bool // effects by Commit

	path       []move
	at         time.Time
	items      [2]map[string]any // the record and the effects, as they are in their tables
	workers    [2]actor
	owners     map[string]string // token → name
	plain      int               // effects
	deleted    bool
	faults     int
	advances   int
	outcome    string // recorded
	violations []string
}

var exploredTables = [2]string{testTable, "effects"}

// exploreID is the record's, and its effects'.
const exploreID = "#k"

// save takes the tables' part of the state.
func (w *world) save() {
	w.at = time.Now()
	for i, table := range exploredTables {
		w.items[i] = w.d.item(table, exploreID)
	}
}

// after is the world after one more move.
func (w *world) after(m move) *world {
	n := *w
	shift := time.Since(w.at) // it goes on later: so do its leases
	n.path = append(w.path[:len(w.path):len(w.path)], m)
	n.owners = maps.Clone(w.owners)
	for i := range n.workers {
		if c := n.workers[i].claim; c != nil {
			n.workers[i].claim = c.Copy(shift)
		}
	}
	for i, table := range exploredTables {
		w.d.setItem(table, exploreID, later(w.items[i], shift))
	}
	n.apply(m)
	return &n
}

// later moves a record's times.
func later(item map[string]any, shift time.Duration) map[string]any {
	item = maps.Clone(item)
	for name, unit := range map[string]time.Duration{"in_progress_expiration": time.Millisecond, "expiration": time.Second} {
		if v, ok := item[name].(map[string]any); ok {
			n, _ := strconv.ParseInt(v["N"].(string), 10, 64)
			if n > 0 {
				item[name] = map[string]any{"N": strconv.FormatInt(n+int64(shift/unit), 10)}
			}
		}
	}
	return item
}

const exploreLease = 30 * time.Second

func (w *world) violated(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// moves are what can happen next.
func (w *world) moves() (all []move) {
	for i := range w.workers {
		for _, how := range w.variants(&w.workers[i]) {
			all = append(all, move{i, how})
		}
	}
	if w.advances < mostAdvances {
		all = append(all, move{len(w.workers), "lease ends"})
	}
	return all
}

func (w *world) variants(a *actor) []string {
	faulty := func(fine ...string) []string {
		if w.faults < mostFaults {
			return append(fine, "lost once", "lost", "never arrives", "crash before", "crash after")
		}
		return fine
	}
	switch a.step {
	case "":
		if a.attempt == attemptsEach {
			return nil
		}
		return faulty("ok")
	case "effect":
		if w.faults < mostFaults {
			return []string{"ok", "fails before", "fails after"}
		}
		return []string{"ok"}
	case "commit":
		return faulty("ok")
	case "settle":
		if !a.renewed {
			return faulty("ok", "renew")
		}
		return faulty("ok")
	case "delete":
		if w.faults < mostFaults {
			return []string{"ok", "crash before"}
		}
		return []string{"ok"}
	}
	panic(a.step)
}

// apply makes a move.
func (w *world) apply(m move) {
	if m.actor == len(w.workers) {
		w.advances++
		time.Sleep(exploreLease + 3*time.Second)
		return
	}
	a := &w.workers[m.actor]
	if m.how != "ok" && m.how != "renew" {
		w.faults++
	}
	if m.how == "crash before" {
		if a.step == "" {
			a.attempt++
		}
		w.end(a)
		return
	}
	switch m.how {
	case "lost once":
		defer w.d.inject(fault{times: 1, dropAfter: true})()
	case "lost":
		defer w.d.inject(fault{times: 4, dropAfter: true})() // all that the SDK makes of one call
	case "never arrives":
		defer w.d.inject(fault{times: 4, dropBefore: true})()
	}
	w.step(m.actor, a, m.how)
	if m.how == "crash after" {
		w.end(a)
	}
}

func (w *world) step(i int, a *actor, how string) {
	ctx := context.Background()
	switch a.step {
	case "":
		w.begin(ctx, i, a)
	case "effect":
		if how != "fails before" {
			w.plain++
		}
		if how != "ok" {
			a.failing = errors.New(how)
		}
		a.step = "settle"
	case "commit":
		one := "effects"
		a.failing = a.claim.Commit(ctx, types.TransactWriteItem{Update: &types.Update{
			TableName: &one, Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: exploreID}},
			UpdateExpression: aws.String("SET n = if_not_exists(n, :zero) + :one"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":zero": &types.AttributeValueMemberN{Value: "0"}, ":one": &types.AttributeValueMemberN{Value: "1"}},
		}})
		a.step = "settle"
	case "settle":
		if how == "renew" {
			a.renewed = true
			_ = a.claim.Renew(ctx, time.Now().Add(exploreLease))
			return
		}
		done, err := a.claim.Settle(ctx, []byte(w.owners[a.claim.Owner()]), a.failing)
		if err == nil || done != nil {
			a.step = "delete"
			return
		}
		w.end(a)
	case "delete":
		w.deleted = true
		w.end(a)
	}
}

func (w *world) begin(ctx context.Context, i int, a *actor) {
	a.attempt++
	c, done, err := w.guard.TryClaim(ctx, exploreID, "same")
	switch {
	case c != nil:
		a.claim, a.step = c, "effect"
		w.owners[c.Owner()] = fmt.Sprintf("%c%d", "AB"[i], a.attempt)
		if w.commits {
			a.step = "commit"
		}
	case done != nil:
		a.step = "delete"
	case err != nil:
		w.end(a)
	}
}

// end is the end of an attempt, whatever way.
func (w *world) end(a *actor) {
	*a = actor{attempt: a.attempt}
}

// check looks at what must hold at every moment.
func (w *world) check() idempotency.Record {
	r, err := w.store.Get(context.Background(), exploreID)
	if err != nil {
		w.violated("reading the record: %v", err)
	}
	outcome := ""
	if r.Status == idempotency.Completed {
		outcome = r.Owner + " " + string(r.Result)
	}
	if w.outcome != "" && outcome != w.outcome {
		w.violated("the outcome changed from %q to %q", w.outcome, outcome)
	}
	w.outcome = outcome
	if w.deleted && outcome == "" {
		w.violated("the message was deleted without an outcome")
	}
	if w.commits {
		n := w.committed()
		if n > 1 || n == 1 && outcome == "" || n == 0 && outcome != "" {
			w.violated("%d effects by transaction, outcome %q", n, outcome)
		}
	}
	return r
}

func (w *world) committed() int {
	out, err := w.reader.GetItem(context.Background(), &dynamodb.GetItemInput{TableName: aws.String("effects"), Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: exploreID}}})
	if err != nil {
		w.violated("reading the effects: %v", err)
		return 0
	}
	n := 0
	if v, ok := out.Item["n"].(*types.AttributeValueMemberN); ok {
		_, _ = fmt.Sscan(v.Value, &n)
	}
	return n
}

// fingerprint is all of the state that can make a difference later. Which of the workers is which makes none.
func (w *world) fingerprint(r idempotency.Record) string {
	return min(w.describe(r, 0, 1), w.describe(r, 1, 0))
}

func (w *world) describe(r idempotency.Record, order ...int) string {
	name := func(owner string) string { // as if the first in order were A
		n := w.owners[owner]
		if n != "" && order[0] == 1 {
			n = string("AB"['B'-n[0]]) + n[1:]
		}
		return n
	}
	now := time.Now()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s over=%v claimable=%v |%d %v %d %d", r.Status, name(r.Owner), !now.Before(r.Lease), r.Claimable(now, skew), min(w.plain, 3), w.deleted, w.faults, w.advances)
	for _, i := range order {
		a := w.workers[i]
		owner := ""
		if a.claim != nil {
			owner = name(a.claim.Owner())
		}
		fmt.Fprintf(&b, " |%d %s %s %v %v", a.attempt, a.step, owner, a.renewed, a.failing)
	}
	return b.String()
}

// finish: whatever has happened, another attempt gets the work done.
func (w *world) finish() {
	time.Sleep(exploreLease + 3*time.Second)
	a := &actor{}
	for w.begin(context.Background(), 0, a); a.step != ""; {
		w.step(0, a, "ok")
		w.check()
	}
	if !w.deleted {
		w.violated("the message can't be done any more")
	}
}

// explore visits every state once, and returns how many moves it made and how many states there are.
func explore(t *testing.T, commits bool) (moves, states int) {
	unlimited := func(o *dynamodb.Options) {
		o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.RateLimiter = 4, ratelimit.None })
	}
	d := newDynamo()
	store := d.newTable(t, testTable, unlimited)
	d.newTable(t, "effects")
	first := &world{d: d, reader: d.client(), store: store, commits: commits, owners: map[string]string{},
		guard: newGuard(t, store, idempotency.Config{Lease: exploreLease, Skew: skew})}
	seen := map[string]bool{}
	visit := func(w *world) (again bool) {
		r := w.check()
		if print := w.fingerprint(r); !seen[print] {
			seen[print] = true
			w.save()
			if len(w.moves()) > 0 {
				return true
			}
			w.finish()
		}
		return false
	}
	visit(first)
	for todo := []*world{first}; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, m := range w.moves() {
			moves++
			next := w.after(m)
			again := visit(next)
			for _, v := range next.violations {
				t.Fatalf("%v: %s", next.path, v)
			}
			if again {
				todo = append(todo, next)
			}
		}
	}
	return moves, len(seen)
}

func TestEveryOrderOfTwoWorkersCrashesLostAnswersAndEndingLeases(t *testing.T) {
	for name, commits := range map[string]bool{"plain effects": false, "effects by transaction": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				moves, states := explore(t, commits)
				t.Logf("%d moves, %d states", moves, states)
			})
		})
	}
}
