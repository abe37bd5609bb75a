package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sqsworker/sqsworker/worker"
)

// order is the body of an order.placed message.
type order struct {
	Number int     `json:"number"`
	Amount float64 `json:"amount"`
}

// payments is the service that this program depends on.
type payments struct {
	url    string
	client *http.Client
}

func newPayments(rawURL string) (payments, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return payments{}, fmt.Errorf("PAYMENTS_URL is %q: must be an http or https URL", rawURL)
	}
	return payments{rawURL, &http.Client{}}, nil
}

// charge charges one order. It may be called twice for one message, so it tells the service by which key to know it again.
// The context ends before the invocation does, or the lease.
func (p payments) charge(ctx context.Context, m *worker.Message, o order) error {
	if o.Amount <= 0 {
		return worker.Permanent(fmt.Errorf("order %d: nothing to charge", o.Number))
	}
	body, err := json.Marshal(o)
	if err != nil {
		return worker.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", m.ID)
	resp, err := p.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // it was cancelled: that says nothing about the service
		}
		return worker.Unavailable(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode >= 500:
		return worker.Unavailable(fmt.Errorf("payments: %s", resp.Status))
	case resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("payments: %s", resp.Status)
	}
	return worker.Permanent(fmt.Errorf("payments: %s", resp.Status))
}
