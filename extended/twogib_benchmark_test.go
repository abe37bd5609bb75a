package extended_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sqsworker/sqsworker/extended"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

// A large payload there and back, and the transfer manager alone with the same, against the same S3 server: three
// processes, so that each one's peak memory is its own. The server keeps objects in files, and their checksums.
//
//	go test ./extended -run '^$' -bench TwoGiB -benchtime 1x
//
// SQSWORKER_BENCH_BYTES makes it smaller.

const (
	roleVariable  = "SQSWORKER_BENCH_ROLE"
	bytesVariable = "SQSWORKER_BENCH_BYTES"
	mostMemory    = 96 * mib
	leastShare    = 0.9
	// memoryLimit is what a container of 96 MiB would set: without it the garbage of the upload may wait for its collection while
	// the download begins.
	memoryLimit = "84MiB"
)

func TestMain(m *testing.M) {
	role, argument, _ := strings.Cut(os.Getenv(roleVariable), " ")
	var err error
	switch role {
	case "server":
		err = serveFiles(argument)
	case "extended":
		err = contest(argument, sendAndOpen)
	case "transfermanager":
		err = contest(argument, uploadAndDownload)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// result is what one contestant needed.
type result struct {
	Up, Down   time.Duration
	Peak       int64 // bytes of resident memory, at most
	Downloaded int64
}

func BenchmarkTwoGiB(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("peak memory is read from /proc")
	}
	server, endpoint := startServer(b)
	defer server()
	for b.Loop() {
		// In turns, and the middle one of five: what other processes take, they take from both.
		var rounds []round
		for range 5 {
			alone := runContest(b, "transfermanager", endpoint)
			rounds = append(rounds, round{runContest(b, "extended", endpoint), alone})
		}
		report(b, rounds)
	}
}

// round is both contestants, one right after the other.
type round struct{ ours, alone result }

func report(b *testing.B, rounds []round) {
	middle := func(f func(round) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, f(r))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	speed := func(d time.Duration) float64 { return float64(benchBytes()) / mib / d.Seconds() }
	up := middle(func(r round) float64 { return float64(r.alone.Up) / float64(r.ours.Up) })
	down := middle(func(r round) float64 { return float64(r.alone.Down) / float64(r.ours.Down) })
	peak, alone := int64(0), int64(0)
	for _, r := range rounds {
		peak, alone = max(peak, r.ours.Peak), max(alone, r.alone.Peak)
	}
	b.ReportMetric(middle(func(r round) float64 { return speed(r.ours.Up) }), "send-MiB/s")
	b.ReportMetric(middle(func(r round) float64 { return speed(r.ours.Down) }), "open-MiB/s")
	b.ReportMetric(up, "send-of-transfermanager")
	b.ReportMetric(down, "open-of-transfermanager")
	b.ReportMetric(float64(peak)/mib, "peak-MiB")
	b.ReportMetric(float64(alone)/mib, "transfermanager-peak-MiB")
	if peak > mostMemory || up < leastShare || down < leastShare {
		b.Errorf("peak %d MiB (at most %d); %.2f and %.2f of the transfer manager's throughput (at least %.1f)", peak/mib, mostMemory/mib, up, down, leastShare)
	}
}

func benchBytes() int64 {
	if n, err := strconv.ParseInt(os.Getenv(bytesVariable), 10, 64); err == nil {
		return n
	}
	return extended.MaxPayload
}

// startServer starts the S3 process; it ends when its input does.
func startServer(b *testing.B) (stop func(), endpoint string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=server "+b.TempDir())
	if dir, err := os.MkdirTemp("/dev/shm", "sqsworker"); err == nil { // a disk's own pace would be most of what is measured
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		cmd.Env = append(cmd.Env, roleVariable+"=server "+dir)
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return func() { _ = in.Close(); _ = cmd.Wait() }, strings.TrimSpace(line)
}

func runContest(b *testing.B, who, endpoint string) (r result) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+who+" "+endpoint, "GOMEMLIMIT="+memoryLimit)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		b.Fatal(err)
	}
	if r.Downloaded != benchBytes() {
		b.Fatalf("%s got %d bytes back", who, r.Downloaded)
	}
	b.Logf("%s: %d bytes up in %v, down in %v, peak %d MiB", who, r.Downloaded, r.Up.Round(time.Millisecond), r.Down.Round(time.Millisecond), r.Peak/mib)
	return r
}

// contest is one contestant's process.
func contest(endpoint string, run func(context.Context, *s3.Client) (result, error)) error {
	client := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "SECRET"}, nil
		}),
	})
	r, err := run(context.Background(), client)
	if err != nil {
		return err
	}
	if r.Peak, err = peakMemory(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func peakMemory() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM")
}

// sendAndOpen sends a message with a payload, receives it and reads the payload.
func sendAndOpen(ctx context.Context, objects *s3.Client) (r result, err error) {
	queue := sqsmodel.New(sqsmodel.Config{})
	url := queue.MustCreateQueue("work", nil)
	c, err := extended.New(queue.Client(), objects, extended.Config{Bucket: bucket, Stream: true})
	if err != nil {
		return r, err
	}
	began := time.Now()
	if _, err := c.Send(ctx, &sqs.SendMessageInput{QueueUrl: &url}, newBytes()); err != nil {
		return r, err
	}
	r.Up = time.Since(began)
	began = time.Now()
	out, err := c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url})
	if err != nil || len(out.Messages) != 1 {
		return r, fmt.Errorf("received nothing: %w", err)
	}
	payload, err := c.Open(ctx, &out.Messages[0])
	if err != nil {
		return r, err
	}
	r.Downloaded, err = io.Copy(io.Discard, payload)
	r.Down = time.Since(began)
	if err = errors.Join(err, payload.Close()); err != nil {
		return r, err
	}
	_, err = c.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: out.Messages[0].ReceiptHandle})
	return r, err
}

// uploadAndDownload is the transfer manager with its own defaults. It downloads with DownloadObject, to a place that forgets:
// that is its fastest way. GetObject, which gives a reader as Open does, buffers 50 MiB and takes many times as long.
func uploadAndDownload(ctx context.Context, objects *s3.Client) (r result, err error) {
	manager := transfermanager.New(objects)
	key := aws.String("alone")
	began := time.Now()
	if _, err := manager.UploadObject(ctx, &transfermanager.UploadObjectInput{Bucket: aws.String(bucket), Key: key, Body: newBytes()}); err != nil {
		return r, err
	}
	r.Up = time.Since(began)
	began = time.Now()
	out, err := manager.DownloadObject(ctx, &transfermanager.DownloadObjectInput{
		Bucket: aws.String(bucket), Key: key, WriterAt: nowhere{},
	})
	r.Down = time.Since(began)
	if err != nil {
		return r, err
	}
	r.Downloaded = aws.ToInt64(out.ContentLength)
	_, err = objects.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: key})
	return r, err
}

type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// newBytes is a payload that costs next to nothing to make: a block of noise, again and again from another place.
func newBytes() io.Reader { return &noise{left: benchBytes()} }

var noiseBlock = func() []byte {
	b := make([]byte, 1<<20)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(b); i++ {
		b[i] = byte(r.Uint32())
	}
	return b
}()

type noise struct {
	left int64
	from int
}

func (n *noise) Read(p []byte) (int, error) {
	if n.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), n.left)]
	got := copy(p, noiseBlock[n.from:])
	n.from = (n.from + got + 12_345) % len(noiseBlock)
	n.left -= int64(got)
	return got, nil
}
