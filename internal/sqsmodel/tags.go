package sqsmodel

import (
	"encoding/json"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

const maxTags = 50

func (s *Server) tagQueue(x *exchange, in *sqs.TagQueueInput) (reply, error) {
	if len(in.Tags) == 0 {
		return nil, missing("Tags")
	}
	merged := map[string]string{}
	for k, v := range x.queue.tags {
		merged[k] = v
	}
	for k, v := range in.Tags {
		merged[k] = v
	}
	if len(merged) > maxTags {
		return nil, fail("InvalidParameterValue", "Too many tags added for queue %s.", x.queue.name)
	}
	x.queue.tags = merged
	return empty{}, nil
}

func (s *Server) untagQueue(x *exchange, in *sqs.UntagQueueInput) (reply, error) {
	if len(in.TagKeys) == 0 {
		return nil, fail("InvalidParameterValue", "Tag keys must be between 1 and 128 characters in length.")
	}
	for _, k := range in.TagKeys {
		delete(x.queue.tags, k)
	}
	return empty{}, nil
}

func (s *Server) listQueueTags(x *exchange, _ *sqs.ListQueueTagsInput) (reply, error) {
	return object{textMap("Tags", x.queue.tags)}, nil
}

// policy is a queue's access policy as far as AddPermission writes it. The model
// stores policies and enforces none.
type policy struct {
	Version   string
	ID        string `json:"Id"`
	Statement []map[string]any
}

func (q *queue) policy() policy {
	p := policy{Version: "2008-10-17", ID: q.arn + "/__default_policy_ID"}
	_ = json.Unmarshal([]byte(q.attrs["Policy"]), &p) // checked when it was set; none is fine
	return p
}

func (q *queue) setPolicy(p policy) error {
	if len(p.Statement) == 0 {
		delete(q.attrs, "Policy")
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	q.attrs["Policy"] = string(b)
	return nil
}

func (p policy) labelled(label string) int {
	return slices.IndexFunc(p.Statement, func(st map[string]any) bool { return st["Sid"] == label })
}

func (s *Server) addPermission(x *exchange, in *sqs.AddPermissionInput) (reply, error) {
	label := value(in.Label)
	switch {
	case label == "":
		return nil, missing("Label")
	case len(in.AWSAccountIds) == 0:
		return nil, missing("AWSAccountIds")
	case len(in.Actions) == 0:
		return nil, missing("Actions")
	}
	p := x.queue.policy()
	if p.labelled(label) >= 0 {
		return nil, invalidValue(label, "Label", "Already exists.")
	}
	var principals, actions []string
	for _, id := range in.AWSAccountIds {
		principals = append(principals, "arn:aws:iam::"+id+":root")
	}
	for _, a := range in.Actions {
		if _, ok := operations[a]; !ok && a != "*" {
			return nil, invalidValue("SQS:"+a, "ActionName", "Please refer to the appropriate WSDL for a list of valid actions. ")
		}
		actions = append(actions, "SQS:"+a)
	}
	p.Statement = append(p.Statement, map[string]any{
		"Sid": label, "Effect": "Allow", "Principal": map[string]any{"AWS": oneOrMany(principals)},
		"Action": oneOrMany(actions), "Resource": x.queue.arn,
	})
	return empty{}, x.queue.setPolicy(p)
}

func oneOrMany(list []string) any {
	if len(list) == 1 {
		return list[0]
	}
	return list
}

func (s *Server) removePermission(x *exchange, in *sqs.RemovePermissionInput) (reply, error) {
	p := x.queue.policy()
	i := p.labelled(value(in.Label))
	if i < 0 {
		return nil, invalidValue(value(in.Label), "Label", "can't find label.")
	}
	p.Statement = slices.Delete(p.Statement, i, i+1)
	return empty{}, x.queue.setPolicy(p)
}
