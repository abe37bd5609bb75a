package extended_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fileServer speaks as much of S3 as payloads need, with objects in files and CRC-32s of the whole: what gofakes3 hasn't,
// which keeps 2 GiB in memory. It holds each part against the checksum that came with it.
type fileServer struct {
	dir string

	mu      sync.Mutex
	next    int
	objects map[string]*object      // by path
	uploads map[string]map[int]part // by upload id, then part number
}

type object struct {
	parts []part
	size  int64
	crc   uint32
	etag  string
}

type part struct {
	file string
	size int64
	crc  uint32
}

// serveFiles is the server's process. It says its address and ends when its input does.
func serveFiles(dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &fileServer{dir: dir, objects: map[string]*object{}, uploads: map[string]map[int]part{}}
	go func() { _ = http.Serve(l, s) }()
	fmt.Println("http://" + l.Addr().String())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (s *fileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(time.Millisecond) // no S3 is nearer
	var err error
	switch op := operation(r); op {
	case "CreateMultipartUpload":
		err = s.create(w, r)
	case "UploadPart":
		err = s.uploadPart(w, r)
	case "CompleteMultipartUpload":
		err = s.complete(w, r)
	case "GetObject", "HeadObject":
		err = s.get(w, r)
	case "DeleteObject", "DeleteObjects":
		err = s.delete(w, r)
	default:
		err = errors.New(op + " isn't implemented")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", r.Method, r.URL, err)
		http.Error(w, "<Error><Code>InternalError</Code></Error>", http.StatusInternalServerError)
	}
}

func (s *fileServer) newName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return strconv.Itoa(s.next)
}

func (s *fileServer) create(w http.ResponseWriter, _ *http.Request) error {
	id := s.newName()
	s.mu.Lock()
	s.uploads[id] = map[int]part{}
	s.mu.Unlock()
	_, err := fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	return err
}

func (s *fileServer) uploadPart(w http.ResponseWriter, r *http.Request) error {
	number, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
	if err != nil || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return errors.New("no part number, or chunks")
	}
	p := part{file: filepath.Join(s.dir, s.newName())}
	f, err := os.Create(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := crc32.NewIEEE()
	p.size, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, sum)}, r.Body, make([]byte, 256<<10))
	if err != nil {
		return err
	}
	p.crc = sum.Sum32()
	if got := r.Header.Get("X-Amz-Checksum-Crc32"); got != text32(p.crc) {
		return fmt.Errorf("part %d has the checksum %s, sent %q", number, text32(p.crc), got)
	}
	s.mu.Lock()
	s.uploads[r.URL.Query().Get("uploadId")][number] = p
	s.mu.Unlock()
	w.Header().Set("ETag", strconv.Quote(text32(p.crc)))
	w.Header().Set("X-Amz-Checksum-Crc32", text32(p.crc))
	return nil
}

func text32(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

func (s *fileServer) complete(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Part []struct{ PartNumber int }
	}
	if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.URL.Query().Get("uploadId")
	o := &object{}
	for i, p := range in.Part {
		stored, ok := s.uploads[id][p.PartNumber]
		if !ok || p.PartNumber != i+1 {
			return fmt.Errorf("part %d wasn't uploaded", p.PartNumber)
		}
		o.parts = append(o.parts, stored)
		o.crc = combine(o.crc, stored.crc, stored.size)
		o.size += stored.size
	}
	o.etag = strconv.Quote(id)
	s.objects[r.URL.Path] = o
	delete(s.uploads, id)
	_, err := fmt.Fprintf(w, "<CompleteMultipartUploadResult><ETag>x</ETag><ChecksumCRC32>%s</ChecksumCRC32><ChecksumType>FULL_OBJECT</ChecksumType></CompleteMultipartUploadResult>", text32(o.crc))
	return err
}

func (s *fileServer) get(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	o := s.objects[r.URL.Path]
	s.mu.Unlock()
	if o == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
		return nil
	}
	from, to, err := o.span(r)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", o.etag)
	h.Set("Content-Length", strconv.FormatInt(to-from, 10))
	h.Set("X-Amz-Mp-Parts-Count", strconv.Itoa(len(o.parts)))
	if to-from < o.size {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, o.size))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		h.Set("X-Amz-Checksum-Crc32", text32(o.crc))
		h.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	if r.Method == http.MethodHead {
		return nil
	}
	_ = o.copy(w, from, to) // the client may have gone
	return nil
}

// span is what a request wants: a part, a range, or all.
func (o *object) span(r *http.Request) (from, to int64, err error) {
	if number := r.URL.Query().Get("partNumber"); number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(o.parts) {
			return 0, 0, fmt.Errorf("no part %q", number)
		}
		for _, p := range o.parts[:n-1] {
			from += p.size
		}
		return from, from + o.parts[n-1].size, nil
	}
	if ranged := r.Header.Get("Range"); ranged != "" {
		if _, err := fmt.Sscanf(ranged, "bytes=%d-%d", &from, &to); err != nil {
			return 0, 0, err
		}
		return from, min(to+1, o.size), nil
	}
	return 0, o.size, nil
}

func (o *object) copy(w io.Writer, from, to int64) error {
	start := int64(0)
	for _, p := range o.parts {
		a, b := max(from, start), min(to, start+p.size)
		if a < b {
			if err := p.copy(w, a-start, b-a); err != nil {
				return err
			}
		}
		start += p.size
	}
	return nil
}

func (p part) copy(w io.Writer, from, n int64) error {
	f, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, n)
	return err
}

func (s *fileServer) delete(w http.ResponseWriter, r *http.Request) error {
	keys := []string{r.URL.Path}
	if r.Method == http.MethodPost {
		var in struct{ Object []struct{ Key string } }
		if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
			return err
		}
		keys = nil
		for _, o := range in.Object {
			keys = append(keys, strings.TrimSuffix(r.URL.Path, "/")+"/"+o.Key)
		}
	}
	s.mu.Lock()
	var gone []part
	for _, key := range keys {
		if o := s.objects[key]; o != nil {
			gone = slices.Concat(gone, o.parts)
			delete(s.objects, key)
		}
	}
	s.mu.Unlock()
	for _, p := range gone {
		_ = os.Remove(p.file)
	}
	_, err := io.WriteString(w, "<DeleteResult></DeleteResult>")
	return err
}

// combine is the CRC-32 of two pieces, from each one's and the second's length: the first one's, moved on by as many
// zero bits, which is a multiplication by x^bits in the field of the polynomial.
func combine(a, b uint32, length int64) uint32 {
	return multiply(power(uint64(length)*8), a) ^ b
}

// multiply multiplies two polynomials, bit 31 the lowest power, modulo CRC-32's.
func multiply(a, b uint32) (product uint32) {
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}

// power is x^n.
func power(n uint64) uint32 {
	result, square := uint32(1)<<31, uint32(1)<<30
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = multiply(result, square)
		}
		square = multiply(square, square)
	}
	return result
}
