package dlq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// State is how far a message has come in a [Journal].
type State string

const (
	// Sending: it was about to be sent. If nothing follows, it may have been.
	Sending State = "sending"
	// Sent: SQS has confirmed it.
	Sent State = "sent"
	// Unsent: SQS has refused it.
	Unsent State = "unsent"
)

// Note is one entry of a [Journal].
type Note struct {
	// ID is the MessageId in the dead-letter queue.
	ID string `json:"id"`
	// State is how far it has come.
	State State `json:"state"`
	// NewID is the MessageId at the destination, once it was sent.
	NewID string `json:"newId,omitempty"`
}

// Redriven says which redrive a journal belongs to.
type Redriven struct {
	// Queue is the dead-letter queue's ARN.
	Queue string `json:"queue"`
	// Destination is the destination's ARN; empty when messages go back to where they came from.
	Destination string `json:"destination,omitempty"`
}

// Journal remembers a redrive, so that another can go on where it broke off. [OpenJournal] keeps one in a file; a table or a bucket can serve,
// too. Write is called concurrently.
type Journal interface {
	// Begin returns the last note of each message that earlier runs have left. It fails if they were for another redrive.
	Begin(context.Context, Redriven) (map[string]Note, error)
	// Write returns once the notes would survive a crash.
	Write(context.Context, []Note) error
}

// FileJournal is a [Journal] in a file, for one process at a time. Notes are on disk when Write returns; writers that come together share an
// fsync.
type FileJournal struct {
	path string

	mu      sync.Mutex
	file    *os.File
	written int64 // notes
	broken  error

	syncing sync.Mutex
	synced  int64 // notes on disk
}

// OpenJournal opens a journal's file, or makes it. A last line that a crash left unfinished is dropped.
func OpenJournal(path string) (*FileJournal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("dlq: journal: %w", err)
	}
	return &FileJournal{path: path, file: f}, nil
}

// journalHeader is the first line.
type journalHeader struct {
	Version int       `json:"sqsworkerRedriveJournal"`
	Began   time.Time `json:"began"`
	Redriven
}

// Begin implements [Journal].
func (j *FileJournal) Begin(_ context.Context, r Redriven) (map[string]Note, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	notes, end, err := j.read(r)
	if err != nil {
		return nil, err
	}
	if err := j.file.Truncate(end); err != nil {
		return nil, fmt.Errorf("dlq: journal: %w", err)
	}
	if _, err := j.file.Seek(end, io.SeekStart); err != nil {
		return nil, fmt.Errorf("dlq: journal: %w", err)
	}
	if end == 0 {
		if err := j.append(journalHeader{Version: 1, Began: time.Now().UTC(), Redriven: r}); err != nil {
			return nil, err
		}
	}
	return notes, nil
}

// read returns the last note of each message, and where the last whole line ends.
func (j *FileJournal) read(r Redriven) (map[string]Note, int64, error) {
	if _, err := j.file.Seek(0, io.SeekStart); err != nil {
		return nil, 0, fmt.Errorf("dlq: journal: %w", err)
	}
	notes := map[string]Note{}
	lines := bufio.NewReader(j.file)
	end := int64(0)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return notes, end, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("dlq: journal %s: %w", j.path, err)
		}
		if n == 1 {
			err = j.checkHeader(line, r)
		} else {
			var note Note
			if err = json.Unmarshal(line, &note); err == nil && note.ID != "" {
				notes[note.ID] = note
			}
		}
		if err != nil {
			return nil, 0, fmt.Errorf("dlq: journal %s: line %d: %w", j.path, n, err)
		}
		end += int64(len(line))
	}
}

func (j *FileJournal) checkHeader(line []byte, r Redriven) error {
	var h journalHeader
	if err := json.Unmarshal(line, &h); err != nil || h.Version == 0 {
		return errors.New("isn't a redrive's journal: choose another file")
	}
	if h.Version != 1 {
		return fmt.Errorf("is of version %d: this program knows version 1", h.Version)
	}
	if h.Redriven != r {
		return fmt.Errorf("is of the redrive of %s to %q, not of %s to %q: choose another file", h.Queue, h.Destination, r.Queue, r.Destination)
	}
	return nil
}

// append writes values as lines; the caller holds mu.
func (j *FileJournal) append(values ...any) error {
	if j.broken != nil {
		return j.broken
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return fmt.Errorf("dlq: journal: %w", err)
		}
	}
	if _, err := j.file.Write(b.Bytes()); err != nil {
		j.broken = fmt.Errorf("dlq: journal: %w", err) // half a line may be there: nothing more can follow it
		return j.broken
	}
	j.written += int64(len(values))
	return nil
}

// Write implements [Journal].
func (j *FileJournal) Write(_ context.Context, notes []Note) error {
	values := make([]any, len(notes))
	for i, n := range notes {
		values[i] = n
	}
	j.mu.Lock()
	err := j.append(values...)
	mine, file := j.written, j.file
	j.mu.Unlock()
	if err != nil {
		return err
	}
	return j.sync(file, mine)
}

// sync returns when the first n notes are on disk. Who comes while another's fsync runs is often served by the next one, which
// somebody else may have made.
func (j *FileJournal) sync(file *os.File, n int64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.synced >= n {
		return nil
	}
	j.mu.Lock()
	upTo := j.written
	j.mu.Unlock()
	if err := file.Sync(); err != nil {
		return fmt.Errorf("dlq: journal: %w", err)
	}
	j.synced = upTo
	return nil
}

// Close closes the file and leaves it.
func (j *FileJournal) Close() error { return j.file.Close() }

// Remove closes the file and removes it, once nothing is left to be resumed.
func (j *FileJournal) Remove() error {
	return errors.Join(j.file.Close(), os.Remove(j.path))
}
