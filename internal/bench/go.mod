module github.com/sqsworker/sqsworker/internal/bench

go 1.25

replace github.com/sqsworker/sqsworker => ../../
