package interruption

import (
	"context"
	"os"
)

// Listen is what a signal source does with the signals that it caught.
func Listen(ctx context.Context, s Source, caught <-chan os.Signal, report func(Notice)) {
	s.(*signalSource).listen(ctx, caught, report)
}
