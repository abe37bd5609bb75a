package extended_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
	"github.com/sqsworker/sqsworker/worker"
)

const mib = 1 << 20

// pattern is n bytes that differ everywhere.
func pattern(n int) string {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, i*0x9e3779b97f4a7c15)
	}
	return string(b[:n])
}

// pointed is a message whose payload was put into S3 by somebody else, in one piece.
func (w *world) pointed(c *extended.Client, payload string) *types.Message {
	w.t.Helper()
	w.s3.put(bucket, prefix+"pointed", payload)
	w.sendRaw(pointerTo(bucket, prefix+"pointed"), reserved(len(payload)))
	return &w.receive(c)[0]
}

func (w *world) stream(c *extended.Client, r io.Reader) (*sqs.SendMessageOutput, error) {
	return c.Send(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url}, r)
}

func TestStreamsOfEverySizeArrive(t *testing.T) {
	each(t, map[string]int{
		"nothing": 0, "one byte": 1, "at the threshold": 262_144, "above it": 262_145, "a part": 5 * mib, "a part less one": 5*mib - 1, "a part and one": 5*mib + 1,
		"more than the window": 31*mib + 12_345,
	}, func(w *world, n int) {
		c := w.client(extended.Config{Stream: true, PartsInFlight: 2})
		payload := pattern(n)
		if _, err := w.stream(c, strings.NewReader(payload)); err != nil {
			w.t.Fatal(err)
		}
		stop := w.work(c, func(ctx context.Context, m *worker.Message) error {
			r, err := extended.Open(ctx, m)
			if err != nil {
				return err
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			if err != nil || string(got) != payload {
				w.t.Errorf("read %d bytes, %v; the same: %v", len(got), err, string(got) == payload)
			}
			if n > 5*mib && c.Stats().InMemory > 20*mib {
				w.t.Errorf("%d bytes of the budget", c.Stats().InMemory)
			}
			return nil
		}, worker.Config{})
		time.Sleep(time.Minute)
		stop()
		if s := c.Stats(); w.left() > 0 || len(w.s3.keys(bucket)) > 0 || s.InMemory != 0 {
			w.t.Errorf("%d messages, %d objects, %+v", w.left(), len(w.s3.keys(bucket)), s)
		}
	})
}

func TestASmallTextStreamIsAnOrdinaryMessage(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		if _, err := w.stream(c, iotest.OneByteReader(strings.NewReader("text"))); err != nil {
			t.Fatal(err)
		}
		if m := w.receiveRaw(); *m.Body != "text" || len(w.s3.called("")) > 0 {
			t.Errorf("body %q", *m.Body)
		}
		if _, err := w.stream(c, strings.NewReader("bytes\x00\xff")); err != nil {
			t.Fatal(err)
		}
		if got := w.receive(c); len(got) != 1 || *got[0].Body != "bytes\x00\xff" || len(w.s3.keys(bucket)) != 1 {
			t.Errorf("received %d", len(got))
		}
	})
}

func TestAStreamIsReadInAnyWay(t *testing.T) {
	payload := pattern(6*mib + 5)
	ways := map[string]func(io.Reader) ([]byte, error){
		"odd reads": func(r io.Reader) ([]byte, error) {
			var all []byte
			for b := make([]byte, 70_001); ; {
				n, err := r.Read(b)
				all = append(all, b[:n]...)
				if err == io.EOF {
					return all, nil
				}
				if err != nil {
					return all, err
				}
			}
		},
		"one large read": func(r io.Reader) ([]byte, error) {
			b := make([]byte, len(payload))
			n, err := io.ReadFull(r, b)
			return b[:n], err
		},
		"copied": func(r io.Reader) ([]byte, error) {
			var b bytes.Buffer
			_, err := io.Copy(&b, r)
			return b.Bytes(), err
		},
	}
	each(t, ways, func(w *world, read func(io.Reader) ([]byte, error)) {
		c := w.client(extended.Config{Stream: true})
		r, err := c.Open(context.Background(), w.pointed(c, payload))
		if err != nil {
			w.t.Fatal(err)
		}
		if got, err := read(r); err != nil || string(got) != payload {
			w.t.Errorf("%d bytes, %v", len(got), err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			w.t.Errorf("after the end: %d, %v", n, err)
		}
		for range 2 {
			if err := r.Close(); err != nil {
				w.t.Error(err)
			}
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			w.t.Error("read after Close")
		}
	})
}

func TestAFailedUploadLeavesNothing(t *testing.T) {
	broken := errors.New("the disk is gone")
	type failure struct {
		payload io.Reader
		fault   fault
		want    error
	}
	big := func() io.Reader { return strings.NewReader(pattern(6 * mib)) }
	each(t, map[string]failure{
		"the reader fails":                     {io.MultiReader(big(), iotest.ErrReader(broken)), fault{}, broken},
		"the reader fails at once":             {iotest.ErrReader(broken), fault{}, broken},
		"fewer bytes than declared":            {extended.Sized{Reader: big(), Size: 7 * mib}, fault{}, extended.ErrSize},
		"more bytes than declared":             {extended.Sized{Reader: big(), Size: 5*mib + 1}, fault{}, extended.ErrSize},
		"fewer in a small one":                 {extended.Sized{Reader: strings.NewReader("text"), Size: 5}, fault{}, extended.ErrSize},
		"above the cap":                        {io.MultiReader(big(), big()), fault{}, extended.ErrTooLarge},
		"a part is denied":                     {big(), fault{op: "UploadPart", status: 403, code: "AccessDenied"}, nil},
		"a part's connection breaks":           {big(), fault{op: "UploadPart", drop: true}, nil},
		"creation is denied":                   {big(), fault{op: "CreateMultipartUpload", status: 403, code: "AccessDenied"}, nil},
		"completion fails":                     {big(), fault{op: "CompleteMultipartUpload", status: 500, code: "InternalError"}, nil},
		"its answer was lost, a retry refused": {big(), fault{op: "CompleteMultipartUpload", lose: true, times: 1}, nil},
		"completion's answer was lost":         {big(), fault{op: "CompleteMultipartUpload", lose: true}, nil},
	}, func(w *world, f failure) {
		c := w.client(extended.Config{MaxPayload: 10 * mib})
		if f.fault.op != "" {
			w.s3.fails(f.fault)
		}
		_, err := w.stream(c, f.payload)
		if err == nil || f.want != nil && !errors.Is(err, f.want) {
			w.t.Errorf("%v", err)
		}
		w.mustHaveNothing(c)
	})
}

// mustHaveNothing: no message, no object, no upload that was begun and not ended.
func (w *world) mustHaveNothing(c *extended.Client) {
	w.t.Helper()
	if begun, ended := w.s3.succeeded("CreateMultipartUpload"), w.s3.succeeded("AbortMultipartUpload")+w.s3.succeeded("CompleteMultipartUpload"); begun != ended {
		w.t.Errorf("%d uploads begun, %d ended", begun, ended)
	}
	if w.left() > 0 || len(w.s3.keys(bucket)) > 0 || c.Stats().Orphans > 0 {
		w.t.Errorf("%d messages, objects %v, %+v", w.left(), w.s3.keys(bucket), c.Stats())
	}
}

func TestACancelledUploadIsAborted(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.s3.fails(fault{op: "UploadPart", hold: time.Hour})
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("enough")
		go func() { synctest.Wait(); cancel(why) }()
		_, err := c.Send(ctx, &sqs.SendMessageInput{QueueUrl: &w.url}, strings.NewReader(pattern(16*mib)))
		if !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		w.mustHaveNothing(c)
	})
}

func TestAnUploadThatS3GarbledIsRefused(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.s3.alter = func(r *http.Request, out *http.Response) {
			if operation(r) == "CompleteMultipartUpload" {
				body := `<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ChecksumCRC32>AAAAAA==</ChecksumCRC32><ChecksumType>FULL_OBJECT</ChecksumType></CompleteMultipartUploadResult>`
				out.Body, out.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
			}
		}
		if _, err := w.stream(c, strings.NewReader(pattern(6*mib))); !errors.Is(err, extended.ErrChecksum) || w.left() > 0 || len(w.s3.keys(bucket)) > 0 {
			t.Errorf("%v; objects %v", err, w.s3.keys(bucket))
		}
	})
}

func TestADownloadIsCheckedAtItsEnd(t *testing.T) {
	payload := pattern(5*mib + 1)
	sum := crc32.ChecksumIEEE([]byte(payload))
	right := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
	each(t, map[string]string{"right": right, "wrong": "AAAAAA=="}, func(w *world, crc string) {
		c := w.client(extended.Config{Stream: true})
		m := w.pointed(c, payload)
		w.s3.alter = func(r *http.Request, out *http.Response) {
			if operation(r) == "HeadObject" {
				out.Header.Set("X-Amz-Checksum-Crc32", crc)
			}
		}
		r, err := c.Open(context.Background(), m)
		if err != nil {
			w.t.Fatal(err)
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		if (crc != right) != errors.Is(err, extended.ErrChecksum) {
			w.t.Errorf("%v", err)
		}
	})
}

func TestAStreamWhoseSizeWasALieIsNotOpened(t *testing.T) {
	each(t, map[string]int{"more": 6*mib + 1, "fewer": 6*mib - 1, "hardly any": 1, "none": 0}, func(w *world, declared int) {
		c := w.client(extended.Config{Stream: true})
		w.s3.put(bucket, prefix+"x", pattern(6*mib))
		w.sendRaw(pointerTo(bucket, prefix+"x"), reserved(declared))
		if _, err := c.Open(context.Background(), &w.receive(c)[0]); !errors.Is(err, extended.ErrSize) || c.Stats().InMemory != 0 {
			w.t.Errorf("%v, %+v", err, c.Stats())
		}
	})
}

func TestABrokenDownloadGoesOnWhereItWas(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Stream: true, PartsInFlight: 2})
		payload := pattern(16 * mib)
		m := w.pointed(c, payload)
		for range 2 {
			w.s3.fails(fault{op: "GetObject", times: 1, cutAt: 3 * mib})
		}
		r, err := c.Open(context.Background(), m)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var got bytes.Buffer
		if _, err := io.CopyN(&got, r, mib); err != nil { // of a part that broke, and is asked for again behind the reader
			t.Fatal(err)
		}
		synctest.Wait() // the window is full
		w.s3.fails(fault{op: "GetObject", times: 1, cutAt: 4 * mib})
		if _, err := io.Copy(&got, r); err != nil || got.String() != payload {
			t.Errorf("%d bytes, %v", got.Len(), err)
		}
	})
}

func TestADownloadThatFailsSaysSoAtItsFirstMissingByte(t *testing.T) {
	each(t, map[string]fault{
		"denied": {op: "GetObject", status: 403, code: "AccessDenied"}, "broken": {op: "GetObject", cutAt: 1000},
		"replaced": {op: "GetObject", status: 412, code: "PreconditionFailed"},
	}, func(w *world, f fault) {
		c := w.client(extended.Config{Stream: true, PartsInFlight: 2})
		m := w.pointed(c, pattern(11*mib))
		w.s3.fails(f)
		r, err := c.Open(context.Background(), m)
		if err != nil {
			w.t.Fatal(err)
		}
		var payload *extended.PayloadError
		if n, err := io.Copy(io.Discard, r); !errors.As(err, &payload) || n >= 11*mib {
			w.t.Errorf("%d bytes, %v", n, err)
		}
		if err := r.Close(); err != nil || c.Stats().InMemory != 0 {
			w.t.Errorf("%v, %+v", err, c.Stats())
		}
	})
}

func TestAStreamEndsWithItsContextAndCanBeLeft(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Stream: true, PartsInFlight: 2})
		m := w.pointed(c, pattern(31*mib))
		left, err := c.Open(context.Background(), m)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the window is full
		if n := len(w.s3.called("GetObject")); n != 4 {
			t.Errorf("%d ranges were asked for before anybody read, want the window's 4", n)
		}
		if err := left.Close(); err != nil {
			t.Error(err)
		}
		w.s3.fails(fault{op: "GetObject", hold: time.Hour})
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("lease lost")
		r, err := c.Open(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		go func() { synctest.Wait(); cancel(why) }()
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
		if err := r.Close(); err != nil || c.Stats().InMemory != 0 {
			t.Errorf("%v, %+v", err, c.Stats())
		}
	})
}

func TestOpenStreamsWaitForRoom(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{Stream: true, PartsInFlight: 2, MemoryBudget: 25 * mib})
		m := w.pointed(c, pattern(11*mib))
		first, err := c.Open(context.Background(), m)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := c.Open(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		opened := make(chan error)
		go func() {
			second, err := c.Open(context.Background(), m)
			if err == nil {
				err = second.Close()
			}
			opened <- err
		}()
		synctest.Wait()
		if s := c.Stats(); s.Waiting != 1 || s.InMemory != 15*mib {
			t.Errorf("%+v", s)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if err := <-opened; err != nil {
			t.Error(err)
		}
	})
}

func TestSendRefusesWhatItCantSend(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		attributes := map[string]types.MessageAttributeValue{}
		for i := range 10 {
			attributes[fmt.Sprint("a", i)] = text("v")
		}
		body := "body"
		for name, in := range map[string]*sqs.SendMessageInput{
			"no input": nil, "a body": {QueueUrl: &w.url, MessageBody: &body}, "delay": {QueueUrl: &w.url, DelaySeconds: 901},
			"attributes": {QueueUrl: &w.url, MessageAttributes: attributes},
		} {
			if _, err := c.Send(context.Background(), in, strings.NewReader(large(300_000))); !errors.Is(err, extended.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.Send(context.Background(), &sqs.SendMessageInput{QueueUrl: &w.url}, nil); !errors.Is(err, extended.ErrInvalid) {
			t.Error(err)
		}
		if n := w.Count("") + int64(len(w.s3.called(""))); n > 0 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestAStreamThatSQSMayHaveTakenIsKept(t *testing.T) {
	bubble(t, func(w *world) {
		c := w.client(extended.Config{})
		w.Inject(sqsmodel.Fault{Action: "SendMessage", DropAfter: true})
		_, err := w.stream(c, strings.NewReader(pattern(6*mib)))
		if !errors.Is(err, extended.ErrUncertain) || len(w.s3.keys(bucket)) != 1 {
			t.Errorf("%v", err)
		}
	})
}
