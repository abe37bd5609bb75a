package interruption

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// IMDS is the part of *imds.Client that is used.
type IMDS interface {
	GetMetadata(context.Context, *imds.GetMetadataInput, ...func(*imds.Options)) (*imds.GetMetadataOutput, error)
}

// EC2Config tunes [EC2]. The zero value is ready for production.
type EC2Config struct {
	// Client reads the instance metadata. Default: a client that uses IMDSv2 only, directly whatever HTTP_PROXY says, at the
	// address in AWS_EC2_METADATA_SERVICE_ENDPOINT if that is set, and not at all if AWS_EC2_METADATA_DISABLED is "true".
	// The SDK's own clients fall back to IMDSv1 unless EnableFallback is aws.FalseTernary.
	Client IMDS

	// Interval is the time between two looks. From 100 ms to 1 minute; default 5 s, which is what AWS recommends. Longer takes
	// away from the two minutes of a Spot notice; shorter adds to the 1,024 packets a second that an instance has for metadata.
	Interval time.Duration

	// Logger takes a line when there is no instance metadata, and when it can't be read for a while. Default slog.Default().
	Logger *slog.Logger
}

// EC2 reads what the instance metadata service (IMDSv2) says about this instance's future. Its sources share one finding of
// whether there is such a service at all. Where there is none (Fargate, a laptop), or where it can't be reached (a container
// behind a hop limit of 1), they log one line after three tries and end. Once it has answered, failures are passing ones.
type EC2 struct {
	cfg   EC2Config
	turn  chan struct{} // capacity 1: who holds it finds out whether the service is there
	known bool          // guarded by turn
	there bool
}

// NewEC2 makes no call. The error names what is wrong with the configuration.
func NewEC2(cfg EC2Config) (*EC2, error) {
	if own, ok := cfg.Client.(*imds.Client); cfg.Client == nil || ok && own == nil {
		cfg.Client = imds.New(imds.Options{
			HTTPClient:     awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.Proxy = nil }),
			EnableFallback: aws.FalseTernary,
		})
	}
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Second
	}
	if cfg.Interval < 100*time.Millisecond || cfg.Interval > time.Minute {
		return nil, fmt.Errorf("interruption: EC2Config.Interval is %v: must be from 100ms to 1m", cfg.Interval)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &EC2{cfg: cfg, turn: make(chan struct{}, 1)}, nil
}

// errNothing is a 404: there is nothing at that path.
var errNothing = errors.New("interruption: no such metadata")

// maxMetadata is far more than any of the values that are read.
const maxMetadata = 64 << 10

func (m *EC2) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := m.cfg.Client.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		if status(err) == http.StatusNotFound {
			return "", errNothing
		}
		return "", err
	}
	defer out.Content.Close()
	body, err := io.ReadAll(io.LimitReader(out.Content, maxMetadata))
	return string(body), err
}

// status is the HTTP status of an answer, 0 when there was none.
func status(err error) int {
	var answer *smithyhttp.ResponseError
	if errors.As(err, &answer) {
		return answer.HTTPStatusCode()
	}
	return 0
}

// tries is how often the service is looked for.
const tries = 3

// isThere finds out, once for all sources, whether there is an instance metadata service.
func (m *EC2) isThere(ctx context.Context) bool {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return false
	}
	if m.known {
		return m.there
	}
	var err error
	for try := 1; try <= tries; try++ {
		if try > 1 && !sleep(ctx, m.cfg.Interval) {
			return false
		}
		_, err = m.get(ctx, "instance-id")
		if err == nil || errors.Is(err, errNothing) || status(err) >= 500 {
			m.known, m.there = true, true
			return true
		}
	}
	if ctx.Err() == nil {
		m.known = true
		m.cfg.Logger.Info("no instance metadata here, so no Spot notices and no Auto Scaling states: right on Fargate and outside of EC2; "+
			"in a container on EC2 the instance's metadata hop limit must be 2", "error", err)
	}
	return false
}

// poll looks at a path until see has seen enough.
func (m *EC2) poll(ctx context.Context, path string, see func(body string) (enough bool)) {
	if !m.isThere(ctx) {
		return
	}
	failures := 0
	for {
		body, err := m.get(ctx, path)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, errNothing):
			if failures > 0 {
				m.cfg.Logger.Info("instance metadata can be read again", "path", path, "failures", failures)
			}
			failures = 0
			if err == nil && see(body) {
				return
			}
		default:
			if failures++; failures&(failures-1) == 0 {
				m.cfg.Logger.Warn("instance metadata can't be read, trying again", "path", path, "failures", failures, "error", err)
			}
		}
		if !sleep(ctx, m.cfg.Interval) {
			return
		}
	}
}

// sleep reports false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// instanceID is this instance's, or why it can't be had.
func (m *EC2) instanceID(ctx context.Context) (string, error) {
	id, err := m.get(ctx, "instance-id")
	if err == nil && strings.TrimSpace(id) == "" {
		err = errNothing
	}
	return strings.TrimSpace(id), err
}
