package interruption

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// agent is the ECS agent's task protection endpoint.
type agent struct {
	url    string
	client HTTPClient
}

// HTTPClient is the part of *http.Client that is used.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// agentTimeout bounds one call; the agent is on the same host, but asks ECS.
const agentTimeout = 5 * time.Second

// agentClient talks to the agent directly, whatever HTTP_PROXY says.
func agentClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, ResponseHeaderTimeout: agentTimeout, MaxIdleConns: 1, IdleConnTimeout: 10 * time.Second,
	}}
}

// ProtectionError is why ECS did not change a task's protection.
type ProtectionError struct {
	// Code is ECS's: DEPLOYMENT_BLOCKED, TASK_NOT_VALID, ThrottlingException, AccessDeniedException, …; empty when the answer had none.
	Code string
	// Detail is its text.
	Detail string
	// Status is the HTTP status.
	Status int
}

func (e *ProtectionError) Error() string {
	code := e.Code
	if code == "" {
		code = "no reason given"
	}
	text := fmt.Sprintf("interruption: ECS task protection: %s (HTTP %d)", code, e.Status)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if hint := e.hint(); hint != "" {
		text += ": " + hint
	}
	return text
}

func (e *ProtectionError) hint() string {
	switch {
	case e.Code == "TASK_NOT_VALID":
		return "only running tasks of a service can be protected"
	case e.Code == "DEPLOYMENT_BLOCKED":
		return "a deployment waits for this task already, and may stop it"
	case strings.HasPrefix(e.Code, "AccessDenied"):
		return "allow ecs:UpdateTaskProtection in the task role"
	}
	return ""
}

// protectionAnswer has one of three parts.
type protectionAnswer struct {
	Protection *struct {
		ProtectionEnabled bool
		ExpirationDate    time.Time
	} `json:"protection"`
	Failure *struct{ Reason, Detail string } `json:"failure"`
	Error   *struct{ Code, Message string }  `json:"error"`
}

// protect asks for protection that lasts for a time in whole minutes; zero takes it off. It returns until when ECS says that it
// lasts; the zero time if ECS doesn't say.
func (a *agent) protect(ctx context.Context, d time.Duration) (until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	request := map[string]any{"ProtectionEnabled": d > 0}
	if d > 0 {
		request["ExpiresInMinutes"] = int(d / time.Minute)
	}
	body, err := json.Marshal(request)
	if err != nil {
		return until, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, a.url, bytes.NewReader(body))
	if err != nil {
		return until, fmt.Errorf("interruption: ECS task protection: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := a.client.Do(req)
	if err != nil {
		return until, fmt.Errorf("interruption: ECS task protection: the agent doesn't answer: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxMetadata))
	if err != nil {
		return until, fmt.Errorf("interruption: ECS task protection: the agent's answer broke off: %w", err)
	}
	return readAnswer(res.StatusCode, raw, d > 0)
}

func readAnswer(status int, raw []byte, on bool) (until time.Time, err error) {
	var answer protectionAnswer
	if err := json.Unmarshal(raw, &answer); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || answer.Protection == nil {
			return until, &ProtectionError{Status: status, Detail: "the answer isn't what the ECS agent says"}
		}
	}
	switch {
	case answer.Failure != nil:
		return until, &ProtectionError{Code: answer.Failure.Reason, Detail: answer.Failure.Detail, Status: status}
	case answer.Error != nil:
		return until, &ProtectionError{Code: answer.Error.Code, Detail: answer.Error.Message, Status: status}
	case answer.Protection == nil || status/100 != 2:
		return until, &ProtectionError{Status: status, Detail: "the answer has no protection in it"}
	case answer.Protection.ProtectionEnabled != on:
		return until, &ProtectionError{Status: status, Detail: fmt.Sprintf("protection should be %t and is %t", on, answer.Protection.ProtectionEnabled)}
	}
	return answer.Protection.ExpirationDate, nil
}
