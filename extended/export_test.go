package extended

var (
	ReadPointer = readPointer
	Embed       = embed
	Split       = split
)

func (f Form) Body(p Pointer) string { return f.body(p) }
