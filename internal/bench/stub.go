package bench

import "context"

func (d *director) latency(ctx context.Context) error    { return nil }
func (d *director) idle(ctx context.Context) error       { return nil }
func (d *director) heartbeats(ctx context.Context) error { return nil }
func (d *director) stop(ctx context.Context) error       { return nil }
func (d *director) hold(ctx context.Context) error       { return nil }
func (d *director) model(ctx context.Context) error      { return nil }
func newHold(assignment, *jobs) (subject, error)         { return nil, nil }
func newModelLoad(assignment, *jobs) (subject, error)    { return nil, nil }
