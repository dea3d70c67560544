package deptest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// Budget bounds the length, in lines, of files and functions.
type Budget struct {
	File     int
	Function int
}

// Check returns one line for each thing in a Go file that is over budget. A function may be longer when the comment
// before it has "long:" and a reason. Generated files may be as they like.
func (b Budget) Check(name string, source []byte) ([]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	var found []string
	if n := strings.Count(string(source), "\n"); n > b.File {
		found = append(found, fmt.Sprintf("%s: %d lines, at most %d", name, n, b.File))
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first, last := set.Position(f.Type.Func), set.Position(f.End())
		n := last.Line - first.Line + 1
		if n > b.Function && !excused(set, file, first.Line) {
			found = append(found, fmt.Sprintf("%s: function %s has %d lines, at most %d", first, f.Name.Name, n, b.Function))
		}
	}
	return found, nil
}

// excused reports whether the comment that ends on the line before has a reason after "long:".
func excused(set *token.FileSet, file *ast.File, line int) bool {
	for _, c := range file.Comments {
		if set.Position(c.End()).Line != line-1 {
			continue
		}
		_, reason, ok := strings.Cut(c.Text(), "long:")
		return ok && strings.TrimSpace(reason) != ""
	}
	return false
}
