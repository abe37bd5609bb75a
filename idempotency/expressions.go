package idempotency

import (
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// The attributes of a record. Names and units of the first six are those of Powertools for AWS Lambda.
const (
	attrStatus  = "status"                 // S
	attrExpires = "expiration"             // N, epoch seconds: the TTL attribute
	attrLease   = "in_progress_expiration" // N, epoch milliseconds
	attrResult  = "data"                   // S, NULL for none
	attrPayload = "validation"             // S
	attrOwner   = "owner"                  // S
	attrFence   = "fence"                  // N
	attrOmitted = "data_omitted"           // N, bytes

	attrAttempts      = "attempts"      // N
	attrFailures      = "failures"      // N
	attrInterruptions = "interruptions" // N
)

// The conditions and updates. A record's expiry is always in the condition, because DynamoDB deletes expired items days later.
const (
	acquireIf = "attribute_not_exists(#id) OR #exp < :now_s OR (#st = :ip AND #ipe < :now_ms_minus_skew)"
	acquire   = "SET #st = :ip, #own = :me, #ipe = :lease, #exp = :ttl, #val = :hash, " +
		"#fence = if_not_exists(#fence, :now_ms) + :one, #att = if_not_exists(#att, :zero) + :one REMOVE #data, #om"

	ownedIf = "#st = :ip AND #own = :me"
	extend  = "SET #ipe = :lease, #exp = :ttl"

	completeUpdate = "SET #st = :done, #data = :data, #exp = :ttl REMOVE #ipe, #att, #fail, #int"
	completeOmit   = "SET #st = :done, #data = :data, #exp = :ttl, #om = :om REMOVE #ipe, #att, #fail, #int"

	releaseFailed      = "SET #ipe = :zero, #fail = if_not_exists(#fail, :zero) + :one REMOVE #own"
	releaseInterrupted = "SET #ipe = :zero, #int = if_not_exists(#int, :zero) + :one REMOVE #own"
	releasePutOff      = "SET #ipe = :zero, #att = #att - :one REMOVE #own"
)

// write is one conditional update of a record.
type write struct {
	condition, update string
	names             map[string]string
	values            map[string]types.AttributeValue
}

func acquireWrite(r AcquireRequest, partitionKey string, now time.Time) write {
	return write{acquireIf, acquire,
		map[string]string{
			"#id": partitionKey, "#st": attrStatus, "#exp": attrExpires, "#ipe": attrLease, "#own": attrOwner, "#val": attrPayload,
			"#fence": attrFence, "#att": attrAttempts, "#data": attrResult, "#om": attrOmitted,
		},
		map[string]types.AttributeValue{
			":ip": str(string(InProgress)), ":me": str(r.Owner), ":lease": num(r.Lease.UnixMilli()), ":ttl": num(r.Expires.Unix()),
			":hash": str(r.Payload), ":now_s": num(now.Unix()), ":now_ms": num(now.UnixMilli()),
			":now_ms_minus_skew": num(now.Add(-r.Skew).UnixMilli()), ":one": num(1), ":zero": num(0),
		}}
}

func extendWrite(owner string, lease, expires time.Time) write {
	return write{ownedIf, extend,
		map[string]string{"#st": attrStatus, "#own": attrOwner, "#ipe": attrLease, "#exp": attrExpires},
		map[string]types.AttributeValue{
			":ip": str(string(InProgress)), ":me": str(owner), ":lease": num(lease.UnixMilli()), ":ttl": num(expires.Unix()),
		}}
}

func completeWrite(owner string, c Completion) write {
	w := write{ownedIf, completeUpdate,
		map[string]string{
			"#st": attrStatus, "#own": attrOwner, "#ipe": attrLease, "#exp": attrExpires, "#data": attrResult,
			"#att": attrAttempts, "#fail": attrFailures, "#int": attrInterruptions,
		},
		map[string]types.AttributeValue{
			":ip": str(string(InProgress)), ":me": str(owner), ":done": str(string(Completed)), ":ttl": num(c.Expires.Unix()),
			":data": &types.AttributeValueMemberNULL{Value: true},
		}}
	if c.Result != nil {
		w.values[":data"] = str(string(c.Result))
	}
	if c.Omitted > 0 {
		w.update = completeOmit
		w.names["#om"], w.values[":om"] = attrOmitted, num(int64(c.Omitted))
	}
	return w
}

func releaseWrite(owner string, how Ended) write {
	w := write{ownedIf, releaseFailed,
		map[string]string{"#st": attrStatus, "#own": attrOwner, "#ipe": attrLease},
		map[string]types.AttributeValue{":ip": str(string(InProgress)), ":me": str(owner), ":zero": num(0), ":one": num(1)}}
	switch how {
	case Failed:
		w.names["#fail"] = attrFailures
	case Interrupted:
		w.update = releaseInterrupted
		w.names["#int"] = attrInterruptions
	case PutOff:
		w.update = releasePutOff
		w.names["#att"] = attrAttempts
	}
	return w
}

func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func num(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// recordOf reads an item; what isn't ours in it is left alone.
func recordOf(id string, item map[string]types.AttributeValue) Record {
	r := Record{
		ID: id, Status: Status(stringAt(item, attrStatus)), Owner: stringAt(item, attrOwner), Fence: numberAt(item, attrFence),
		Payload: stringAt(item, attrPayload), Omitted: int(numberAt(item, attrOmitted)), Attempts: int(numberAt(item, attrAttempts)),
		Failures: int(numberAt(item, attrFailures)), Interruptions: int(numberAt(item, attrInterruptions)),
	}
	if ms := numberAt(item, attrLease); ms > 0 {
		r.Lease = time.UnixMilli(ms)
	}
	if s := numberAt(item, attrExpires); s > 0 {
		r.Expires = time.Unix(s, 0)
	}
	if s, ok := item[attrResult].(*types.AttributeValueMemberS); ok {
		r.Result = []byte(s.Value)
	}
	return r
}

func stringAt(item map[string]types.AttributeValue, name string) string {
	s, _ := item[name].(*types.AttributeValueMemberS)
	if s == nil {
		return ""
	}
	return s.Value
}

func numberAt(item map[string]types.AttributeValue, name string) int64 {
	n, _ := item[name].(*types.AttributeValueMemberN)
	if n == nil {
		return 0
	}
	i, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil { // another writer's fraction
		f, _ := strconv.ParseFloat(n.Value, 64)
		i = int64(f)
	}
	return i
}
