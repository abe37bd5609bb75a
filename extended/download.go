package extended

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// download is a large object as a stream. The transfer manager downloads it in ranges, into a window of buffers that
// moves with the reader: it is the io.WriterAt to which they are written, and the gate that a range waits at until its
// buffer is free. A range that has begun never waits, so no connection idles behind a slow reader.
//
// One goroutine runs the transfer manager, from newDownload to Close or the end.
type download struct {
	p       *payloads
	at      Pointer
	part    int64
	window  int // parts
	sum     *checksum
	cancel  context.CancelCauseFunc
	stop    func() bool
	release func()
	ended   chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	moved  sync.Cond // anything below has changed
	pos    int64     // bytes read
	filled map[int64]*buffer
	free   []*buffer
	err    error // why no more comes
	done   bool  // all has come
	closed bool
}

// buffer is one part in the window. Its writer writes behind n, its reader reads before it.
type buffer struct {
	bytes []byte
	n     atomic.Int64
	sum   uint64 // of the bytes before n
}

func (p *payloads) newDownload(ctx context.Context, at Pointer, etag string, sum *checksum, release func()) *download {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &download{
		p: p, at: at, part: p.cfg.PartSize, window: p.cfg.PartsInFlight + readAhead, sum: sum,
		cancel: cancel, release: release, ended: make(chan struct{}), filled: map[int64]*buffer{},
	}
	d.moved.L = &d.mu
	d.stop = context.AfterFunc(ctx, d.wake)
	go d.run(ctx, etag)
	return d
}

// readAhead is how many parts more than travel may wait for the reader: else whoever has fetched one would wait for the
// slowest of the others.
const readAhead = 2

// wake makes those who wait look at the context.
func (d *download) wake() {
	d.mu.Lock()
	d.moved.Broadcast()
	d.mu.Unlock()
}

func (d *download) run(ctx context.Context, etag string) {
	defer close(d.ended)
	gated := &gatedS3{d.p.s3, d}
	manager := transfermanager.New(gated, func(o *transfermanager.Options) {
		o.PartSizeBytes = d.part
		o.Concurrency = d.p.cfg.PartsInFlight
		o.GetObjectType = tmtypes.GetObjectRanges
		o.PartBodyMaxRetries = bodyAttempts
		o.DisableChecksumValidation = true // there are none for ranges; the whole is checked at the end
	})
	_, err := manager.DownloadObject(ctx, &transfermanager.DownloadObjectInput{
		Bucket: &d.at.Bucket, Key: &d.at.Key, IfMatch: optional(etag), ExpectedBucketOwner: d.p.owner(d.at), WriterAt: d,
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	d.mu.Lock()
	d.err, d.done = err, err == nil
	d.moved.Broadcast()
	d.mu.Unlock()
}

// gatedS3 is the S3 client that the transfer manager sees.
type gatedS3 struct {
	S3
	d *download
}

func (g *gatedS3) GetObject(ctx context.Context, in *s3.GetObjectInput, optFns ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	b, err := g.d.enter(ctx, aws.ToString(in.Range))
	if err != nil {
		return nil, err
	}
	out, err := g.S3.GetObject(ctx, in, append(optFns[:len(optFns):len(optFns)], func(o *s3.Options) {
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})...)
	if err == nil {
		out.Body = &straight{out.Body, b}
	}
	return out, err
}

// straight is a range's body that is read into the range's buffer straight away: io.Copy, with which the transfer manager
// hands it to WriteAt, would take it through a buffer of its own.
type straight struct {
	io.ReadCloser
	b *buffer
}

// readMost is the most that is read before WriteAt hears of it.
const readMost = 128 << 10

// WriteTo writes what it read to w, which passes it on to WriteAt.
func (s *straight) WriteTo(w io.Writer) (written int64, err error) {
	var aside []byte
	for {
		p := s.b.bytes[min(int(written), len(s.b.bytes)):]
		if written < s.b.n.Load() || len(p) == 0 {
			// A second try: the reader may be reading these bytes just now. Or nothing is to come.
			if aside == nil {
				aside = make([]byte, 32<<10)
			}
			p = aside
		}
		n, err := s.Read(p[:min(len(p), readMost)])
		if n > 0 {
			if _, err := w.Write(p[:n]); err != nil {
				return written, err
			}
			written += int64(n)
		}
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
}

// enter waits until a range is in the window, and gives it a buffer.
func (d *download) enter(ctx context.Context, ranged string) (*buffer, error) {
	from, _, _ := strings.Cut(strings.TrimPrefix(ranged, "bytes="), "-")
	offset, err := strconv.ParseInt(from, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("extended: the transfer manager asked for the range %q", ranged)
	}
	part := offset / d.part
	d.mu.Lock()
	defer d.mu.Unlock()
	for ctx.Err() == nil && !d.closed && part >= d.pos/d.part+int64(d.window) {
		d.moved.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case d.closed:
		return nil, errClosed
	case part < d.pos/d.part: // a second try of a part that has been read to its end: its bytes go nowhere
		return &buffer{}, nil
	case d.filled[part] == nil: // else it is a second try
		d.filled[part] = d.takeLocked()
	}
	return d.filled[part], nil
}

func (d *download) takeLocked() *buffer {
	if n := len(d.free); n > 0 {
		b := d.free[n-1]
		d.free = d.free[:n-1]
		return b
	}
	return &buffer{bytes: make([]byte, d.part)}
}

var errClosed = errors.New("extended: the payload's stream is closed")

// WriteAt takes what arrived. A part is written from its beginning, by one goroutine, and once more from its beginning when
// its connection broke: what it has already is the same, and may be read just now.
func (d *download) WriteAt(p []byte, offset int64) (int, error) {
	for rest := p; len(rest) > 0; {
		part, from := offset/d.part, int(offset%d.part)
		n := min(len(rest), int(d.part)-from)
		if err := d.write(part, from, rest[:n]); err != nil {
			return len(p) - len(rest), err
		}
		rest, offset = rest[n:], offset+int64(n)
	}
	return len(p), nil
}

func (d *download) write(part int64, from int, p []byte) error {
	d.mu.Lock()
	b := d.filled[part]
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return errClosed
	}
	if b == nil { // read to its end already
		return nil
	}
	have := int(b.n.Load())
	switch {
	case from > have || from+len(p) > len(b.bytes):
		return fmt.Errorf("extended: the transfer manager wrote part %d at %d, after %d", part, from, have)
	case from+len(p) <= have:
		return nil
	}
	if &p[0] != &b.bytes[from] { // else it was read to where it belongs
		copy(b.bytes[have:], p[have-from:])
	}
	b.sum = d.sum.arrived(b.sum, b.bytes[have:from+len(p)])
	d.mu.Lock()
	b.n.Store(int64(from + len(p)))
	if d.pos/d.part == part {
		d.moved.Broadcast()
	}
	d.mu.Unlock()
	return nil
}

// Read returns what has arrived, in order.
func (d *download) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	arrived, err := d.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, arrived)
	d.advance(arrived[:n])
	return n, nil
}

// WriteTo writes all of it without copying it once more; io.Copy uses it.
func (d *download) WriteTo(w io.Writer) (written int64, err error) {
	for {
		arrived, err := d.next()
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		n, err := w.Write(arrived)
		d.advance(arrived[:n])
		written += int64(n)
		if err != nil {
			return written, err
		}
		if n < len(arrived) {
			return written, io.ErrShortWrite
		}
	}
}

// next waits for bytes at the reader's position; the slice is the reader's until advance.
func (d *download) next() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		part, from := d.pos/d.part, int(d.pos%d.part)
		b := d.filled[part]
		switch {
		case d.closed:
			return nil, errClosed
		case d.pos == d.at.Size:
			if !d.done && d.err == nil {
				break // the transfer manager may yet say what was wrong
			}
			return nil, d.endLocked()
		case b != nil && int(b.n.Load()) > from:
			return b.bytes[from:b.n.Load()], nil
		case d.err != nil:
			return nil, d.failureLocked()
		case d.done:
			return nil, failed("get", d.at, fmt.Errorf("%w: declared %d, %d came", ErrSize, d.at.Size, d.pos))
		}
		d.moved.Wait()
	}
}

// endLocked is io.EOF if what was read is what S3 has.
func (d *download) endLocked() error {
	if d.err != nil {
		return d.failureLocked()
	}
	if !d.sum.matches() {
		return failed("get", d.at, ErrChecksum)
	}
	return io.EOF
}

func (d *download) failureLocked() error { return verdict(failed("get", d.at, explain(d.err))) }

// advance moves the window.
func (d *download) advance(read []byte) {
	d.sum.read(read)
	d.p.stats.fetchedBytes.Add(int64(len(read)))
	d.mu.Lock()
	defer d.mu.Unlock()
	part := d.pos / d.part
	d.pos += int64(len(read))
	if d.pos/d.part > part || d.pos == d.at.Size {
		b := d.filled[part]
		delete(d.filled, part)
		d.sum.joined(b.sum, b.n.Load())
		b.sum = 0
		b.n.Store(0)
		d.free = append(d.free, b)
		d.moved.Broadcast()
	}
}

// Close ends the stream, waits for its transfers to have ended, and gives its room back.
func (d *download) Close() error {
	d.mu.Lock()
	d.closed = true
	d.moved.Broadcast()
	d.mu.Unlock()
	d.cancel(errClosed)
	d.stop()
	<-d.ended
	d.mu.Lock()
	d.filled, d.free = map[int64]*buffer{}, nil
	d.mu.Unlock()
	d.release()
	return nil
}
