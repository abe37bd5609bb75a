package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

//go:embed orders.jsonl
var builtIn string

const (
	builtInName   = "orders.jsonl"
	maxBody       = 1 << 20 // of one SQS message
	maxAttachment = 8 << 20
	maxAttached   = 128 << 20 // of all: they are in memory
)

// message is one line of the input.
type message struct {
	body   string
	job    job
	attach int // bytes of the attachment that goes with it
}

// text is what is sent: the line, with the attachment in the place of its size.
func (m message) text() string {
	if m.attach == 0 {
		return m.body
	}
	const page = "a page of an attachment. "
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(m.body))
	decoder.UseNumber()
	_ = decoder.Decode(&fields) // checkLine has read it
	fields["attachment"] = strings.Repeat(page, m.attach/len(page)+1)[:m.attach]
	text, _ := json.Marshal(fields) // it was JSON
	return string(text)
}

// readInput reads the messages to send: a file's, standard input's, or those that come with the program.
func readInput(name string, stdin io.Reader) (messages []message, source string, err error) {
	switch name {
	case "":
		messages, err = readLines(builtInName, strings.NewReader(builtIn))
		return messages, builtInName, err
	case "-":
		messages, err = readLines("standard input", stdin)
		return messages, "standard input", err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, name, err
	}
	defer f.Close()
	messages, err = readLines(name, f)
	return messages, name, err
}

// readLines reads JSON lines. The first bad one ends it, named as editors and terminals like it: file:line.
func readLines(name string, r io.Reader) ([]message, error) {
	var messages []message
	attached := 0
	lines := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if err == io.EOF {
			break
		}
		if number == 1 {
			line = strings.TrimPrefix(line, "\uFEFF") // some editors begin a file with this mark
		}
		var m message
		if err == nil {
			m, err = checkLine(line)
		}
		if attached += m.attach; err == nil && attached > maxAttached {
			err = fmt.Errorf("attachments of more than %d bytes together are too many for a demonstration", maxAttached)
		}
		if err == nil && len(messages) == maxMessages {
			err = fmt.Errorf("more than %d messages are too many for a demonstration", maxMessages)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		return nil, fmt.Errorf("%s:1: no messages: must have at least one line such as {\"order\":4521,\"amount\":500}", name)
	}
	return messages, nil
}

var errTooLong = fmt.Errorf("longer than %d bytes, the most that SQS takes in one message", maxBody)

// readLine returns the next line without its end, and never holds more of a line that is too long than needed to know.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxBody+len("\r\n"):
			return "", errTooLong
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(line) == 0:
			return "", io.EOF
		case err != nil && err != io.EOF:
			return "", err
		}
		text := strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r")
		if len(text) > maxBody {
			return "", errTooLong
		}
		return text, nil
	}
}

// checkLine finds, before anything is sent, what SQS or the handler would refuse.
func checkLine(line string) (message, error) {
	switch {
	case strings.TrimSpace(line) == "":
		return message{}, errors.New("empty: SQS takes no empty message; remove the line")
	case !utf8.ValidString(line):
		return message{}, errors.New("not UTF-8")
	}
	for _, r := range line {
		if r < ' ' && r != '\t' || r == 0xFFFE || r == 0xFFFF {
			return message{}, fmt.Errorf("has the character %U, which SQS doesn't take", r)
		}
	}
	j, err := parse(line)
	if err != nil {
		return message{}, err
	}
	attach, err := attachmentSize(line)
	if j.event {
		attach, err = 0, nil
	}
	return message{line, j, attach}, err
}

// attachmentSize is the number under "attachment". Anything else there is part of the message as it is.
func attachmentSize(line string) (int, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		return 0, err
	}
	number := string(fields["attachment"])
	if number == "" || !strings.Contains("-0123456789", number[:1]) {
		return 0, nil
	}
	size, err := strconv.Atoi(number)
	if err != nil || size < 1 || size > maxAttachment {
		return 0, fmt.Errorf(`"attachment" is %s: must be a whole number of bytes from 1 to %d`, short(number), maxAttachment)
	}
	return size, nil
}

// generate makes n orders more, in the mixture of the built-in ones.
func generate(n int) []message {
	messages := make([]message, n)
	for i := range messages {
		amount := 100 + i*37%900
		switch {
		case i%12 == 5:
			amount += slowAmount
		case i%40 == 9:
			amount = -amount
		}
		body := fmt.Sprintf(`{"order":%d,"amount":%d}`, 100_000+i, amount)
		j, _ := parse(body) // can't fail: it is of the shape that parse reads
		messages[i] = message{body: body, job: j}
	}
	return messages
}
