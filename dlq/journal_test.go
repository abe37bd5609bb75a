package dlq_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/dlq"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

var redriven = dlq.Redriven{Queue: arn("dead"), Destination: arn("work")}

func begin(t *testing.T, path string) (*dlq.FileJournal, map[string]dlq.Note) {
	t.Helper()
	j, err := dlq.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	notes, err := j.Begin(context.Background(), redriven)
	if err != nil {
		t.Fatal(err)
	}
	return j, notes
}

func TestAJournalRemembersTheLastNoteOfEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, notes := begin(t, path)
	if len(notes) != 0 {
		t.Error(notes)
	}
	var writers sync.WaitGroup
	for i := range 20 {
		writers.Go(func() {
			for k := range 10 {
				id := fmt.Sprintf("%d-%d", i, k)
				err := j.Write(context.Background(), []dlq.Note{{ID: id, State: dlq.Sending}})
				if k%2 == 0 && err == nil {
					err = j.Write(context.Background(), []dlq.Note{{ID: id, State: dlq.Sent, NewID: "new-" + id}})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	_, notes = begin(t, path) // the first was never closed, as after a crash
	if len(notes) != 200 || notes["3-4"] != (dlq.Note{ID: "3-4", State: dlq.Sent, NewID: "new-3-4"}) || notes["3-5"].State != dlq.Sending {
		t.Errorf("%d notes, %+v, %+v", len(notes), notes["3-4"], notes["3-5"])
	}
}

// A crash leaves any prefix of the last line.
func TestAJournalWithAnUnfinishedLineGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := begin(t, path)
	if err := j.Write(context.Background(), []dlq.Note{{ID: "1", State: dlq.Sent, NewID: "n"}}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut <= len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		j, notes := begin(t, path)
		if (len(notes) == 1) != (cut == len(whole)) {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), notes)
		}
		if err := j.Write(context.Background(), []dlq.Note{{ID: "2", State: dlq.Sending}}); err != nil {
			t.Fatal(err)
		}
		if _, notes = begin(t, path); notes["2"].State != dlq.Sending {
			t.Fatalf("cut at %d: what followed is lost: %v", cut, notes)
		}
	}
}

func TestAJournalOfSomethingElseIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string][2]string{
		"another redrive": {`{"sqsworkerRedriveJournal":1,"queue":"` + arn("other") + `"}` + "\n", "is of the redrive of " + arn("other")},
		"another version": {`{"sqsworkerRedriveJournal":2,"queue":"` + arn("dead") + `"}` + "\n", "version 2"},
		"not a journal":   {"# Shopping\n- milk\n", "isn't a redrive's journal"},
		"broken line":     {`{"sqsworkerRedriveJournal":1,"queue":"` + redriven.Queue + `","destination":"` + redriven.Destination + `"}` + "\n?\n", "line 2"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(c[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := dlq.OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Begin(context.Background(), redriven); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v", name, err)
		}
		_ = j.Close()
		if after, _ := os.ReadFile(path); string(after) != c[0] {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := dlq.OpenJournal(filepath.Join(dir, "no", "such", "directory")); err == nil {
		t.Error("no error")
	}
}

// Every crash point of one batch, by cutting the journal and keeping the queue as it was then: nothing is lost, and what is sent twice is named.
func TestEachCrashPointIsResumed(t *testing.T) {
	type crash struct {
		fault      sqsmodel.Fault
		already    int64
		moved      int64
		duplicates int
	}
	each(t, map[string]crash{
		"before the send":                   {fault: sqsmodel.Fault{Action: "SendMessageBatch", Stall: true}, moved: 10, duplicates: 10},
		"after the send, before its answer": {fault: sqsmodel.Fault{Action: "SendMessageBatch", HoldAfter: time.Hour}, moved: 10, duplicates: 10},
		"after the answer, before delete":   {fault: sqsmodel.Fault{Action: "DeleteMessageBatch", Skip: 1, Stall: true}, already: 10},
		"after the delete":                  {fault: sqsmodel.Fault{Action: "DeleteMessageBatch", Skip: 1, HoldAfter: time.Hour}},
	}, func(w *world, c crash) {
		source, dead := w.pair()
		w.dead(source, 10)
		path := filepath.Join(w.t.TempDir(), "journal")
		remove := w.Inject(c.fault)
		first, cut := w.cutOff()
		go func() { // it never comes to an end by itself: its calls hang, and then all of them fail without an effect
			_, _ = dlq.Redrive(context.Background(), first, dead, dlq.RedriveConfig{Journal: w.journal(path)})
		}()
		time.Sleep(20 * time.Second)
		cut()
		remove()
		time.Sleep(2 * time.Minute) // its leases run out
		r, err := w.redrive(context.Background(), dead, dlq.RedriveConfig{Journal: w.journal(path)})
		if err != nil || r.AlreadyMoved != c.already || r.Moved != c.moved || len(r.Duplicates) != c.duplicates {
			w.t.Errorf("%+v, %v", r, err)
		}
		w.mustHold(dead, 0)
		bodies := map[string]bool{}
		for _, b := range w.bodies(source) {
			bodies[b] = true
		}
		if len(bodies) != 10 {
			w.t.Errorf("%d of 10 messages are at the source", len(bodies))
		}
		w.mustNameDuplicates(source, r)
	})
}
