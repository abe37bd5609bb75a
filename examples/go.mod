module github.com/sqsworker/sqsworker/examples

go 1.25

replace github.com/sqsworker/sqsworker => ../
