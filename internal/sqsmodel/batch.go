package sqsmodel

import "strings"

const maxEntries = 10

// batch applies a batch entry by entry: one's failure is no other's.
func (x *exchange) batch(apply func(i int) (*sent, *apiError)) reply {
	out := &batch{}
	for i, id := range x.entryIDs {
		scripted := x.entryErrors[i]
		if scripted != nil {
			out.failed = append(out.failed, batchFailure{id, scripted.Code, scripted.Message, scripted.SenderFault})
			if !scripted.ApplyAnyway {
				continue
			}
		}
		done, err := apply(i)
		switch {
		case scripted != nil:
		case err != nil:
			out.failed = append(out.failed, err.entry(id))
		default:
			out.succeeded = append(out.succeeded, batchEntry{id, done})
		}
	}
	return out
}

func (e *apiError) entry(id string) batchFailure {
	f := batchFailure{id: id, code: e.code, message: e.message, senderFault: !e.receiver}
	if e.entryCode != "" {
		f.code, f.message = e.entryCode, e.entryMessage
	}
	return f
}

func checkBatch(kind string, ids []string) *apiError {
	if len(ids) == 0 {
		return fail("EmptyBatchRequest", "There should be at least one %s in the request.", kind)
	}
	if len(ids) > maxEntries {
		return fail("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent %d.", len(ids))
	}
	for i, id := range ids {
		if !validEntryID(id) {
			return fail("InvalidBatchEntryId")
		}
		for _, other := range ids[:i] {
			if id == other {
				return fail("BatchEntryIdsNotDistinct", "Id %s repeated.", id)
			}
		}
	}
	return nil
}

func validEntryID(id string) bool {
	return id != "" && len(id) <= 80 && strings.IndexFunc(id, func(r rune) bool { return !wordRune(r) }) < 0
}

func wordRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}
