package deptest

import (
	"fmt"
	"slices"
	"strings"
)

// Package is what `go list -json` tells about one package; the names are those of its output.
type Package struct {
	ImportPath   string
	Imports      []string // of the package
	TestImports  []string // of its tests inside the package
	XTestImports []string // of its tests outside the package
}

// Rule says what the packages that match a pattern may import, besides the standard library.
//
// Patterns are paths within the module: "." is the root, "cli" is that package, "cli/..." is it and all below, "..." is
// everything. A list allows what one of its patterns matches and none of those after an exclamation mark.
type Rule struct {
	Packages string
	Module   []string // packages of this module
	Others   []string // packages of other modules, by import path: "example.org/x/..."
}

// Arrows checks the packages of a module against its rules, of which the first that matches a package counts. tests
// lists what tests may import of other modules besides what their package may. Tests outside their package may import
// all of the module, since no one imports them. It returns one line for each violation.
func Arrows(module string, rules []Rule, tests []string, packages []Package) []string {
	var found []string
	for _, p := range packages {
		own, ok := within(module, p.ImportPath)
		if !ok {
			found = append(found, p.ImportPath+" is not in the module")
			continue
		}
		i := slices.IndexFunc(rules, func(r Rule) bool { return matches(r.Packages, own) })
		if i < 0 {
			found = append(found, fmt.Sprintf("%s: no rule says what it may import", own))
			continue
		}
		check := func(kind string, imports, inModule, others []string) {
			for _, path := range imports {
				list, name := others, path
				if rel, ok := within(module, path); ok {
					list, name = inModule, rel
				} else if standard(path) {
					continue
				}
				if name != own && !allows(list, name) {
					found = append(found, fmt.Sprintf("%s: %s may not import %s", own, kind, name))
				}
			}
		}
		r := rules[i]
		check("the package", p.Imports, r.Module, r.Others)
		withTests := slices.Concat(r.Others, tests)
		check("its internal test", p.TestImports, []string{"..."}, withTests)
		check("its test", p.XTestImports, []string{"..."}, withTests)
	}
	return found
}

// Depth returns the longest chain of imports among the packages of the module, its first package first.
// A chain of n packages has depth n-1.
func Depth(packages []Package) []string {
	imports := make(map[string][]string)
	for _, p := range packages {
		imports[p.ImportPath] = p.Imports
	}
	memo := make(map[string][]string)
	var longest func(path string) []string
	longest = func(path string) []string {
		if chain, ok := memo[path]; ok {
			return chain
		}
		var below []string
		for _, next := range imports[path] {
			if _, ours := imports[next]; !ours {
				continue
			}
			if chain := longest(next); len(chain) > len(below) {
				below = chain
			}
		}
		memo[path] = append([]string{path}, below...)
		return memo[path]
	}
	var best []string
	for _, p := range packages {
		if chain := longest(p.ImportPath); len(chain) > len(best) {
			best = chain
		}
	}
	return best
}

// within returns the path of a package relative to its module, "." for the root.
func within(module, path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// standard reports whether an import path is of the standard library: its first element has no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func allows(list []string, path string) bool {
	ok := false
	for _, pattern := range list {
		if not, found := strings.CutPrefix(pattern, "!"); found {
			if matches(not, path) {
				return false
			}
		} else if matches(pattern, path) {
			ok = true
		}
	}
	return ok
}

func matches(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == tree || strings.HasPrefix(path, tree+"/")
	}
	return pattern == path
}
