package dlq

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
)

var errNoClient = errors.New("dlq: no client: pass an *sqs.Client")

// isNil finds a nil *sqs.Client in an interface too.
func isNil(c any) bool {
	if c == nil {
		return true
	}
	v := reflect.ValueOf(c)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func checkURL(queueURL string) error {
	u, err := url.Parse(queueURL)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || strings.Trim(u.Path, "/") == "" {
		return fmt.Errorf("dlq: queue URL %q: must be one as GetQueueUrl returns it, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders", queueURL)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
