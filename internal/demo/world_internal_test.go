package demo // the world and the table have no exported names

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/smtp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w, err := openWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

func TestModelBillsEachCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	post := func(key, body string) (int, map[string]any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.addresses().HTTP+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, out
	}
	const good = `{"model":"m","messages":[{"role":"user","content":"customer: hello\n"}],"metadata":{"ticket":"t1"}}`
	for i := range 2 {
		status, out := post("sk", good)
		if status != http.StatusOK || out["object"] != "chat.completion" || !strings.HasPrefix(fmt.Sprint(out["id"]), "chatcmpl-") {
			t.Fatalf("call %d: %d %v", i, status, out)
		}
		choice := out["choices"].([]any)[0].(map[string]any)
		message := choice["message"].(map[string]any)
		var s score
		if err := json.Unmarshal([]byte(message["content"].(string)), &s); err != nil || choice["finish_reason"] != "stop" || message["role"] != "assistant" {
			t.Errorf("call %d: choice %v, %v", i, choice, err)
		}
		usage := out["usage"].(map[string]any)
		if in, gen := usage["prompt_tokens"].(float64), usage["completion_tokens"].(float64); in <= 0 || gen <= 0 || usage["total_tokens"] != in+gen {
			t.Errorf("call %d: usage %v", i, usage)
		}
	}
	for _, c := range []struct {
		key, body string
		status    int
	}{
		{"", good, http.StatusUnauthorized},
		{"sk", `{"metadata":{"ticket":"t1"}}`, http.StatusBadRequest},
		{"sk", `{`, http.StatusBadRequest},
	} {
		status, out := post(c.key, c.body)
		if e, ok := out["error"].(map[string]any); status != c.status || !ok || e["message"] == "" {
			t.Errorf("%s: got %d %v, want %d and an error", c.body, status, out, c.status)
		}
	}
	if _, bills, _ := w.count("t1"); bills != 2 {
		t.Errorf("got %d paid calls, want 2: each accepted call is billed, a refused one is not", bills)
	}
}

func TestMailServerCountsDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func(id, ticket string) {
		t.Helper()
		mail := "Message-ID: <" + id + ">\r\nSubject: hello\r\n\r\nbody\r\n"
		if err := smtp.SendMail(w.addresses().SMTP, nil, "a@example.com", []string{ownerOf(ticket)}, []byte(mail)); err != nil {
			t.Fatal(err)
		}
	}
	send("one@x", "t1")
	send("one@x", "t1")
	send("two@x", "t1")
	send("three@x", "t2")
	got := map[string]int{}
	for _, id := range []string{"one@x", "two@x", "three@x", "four@x"} {
		got[id] = w.deliveries(id)
	}
	if diff := cmp.Diff(got, map[string]int{"one@x": 2, "two@x": 1, "three@x": 1, "four@x": 0}); diff != "" {
		t.Errorf("deliveries per Message-ID (-got +want):\n%s", diff)
	}
	if _, _, emails := w.count("t1"); emails != 3 {
		t.Errorf("got %d e-mails to the owner of t1, want 3", emails)
	}
	if err := smtp.SendMail(w.addresses().SMTP, nil, "a@example.com", []string{"b@example.com"}, []byte("Subject: x\r\n\r\n")); err == nil {
		t.Error("an e-mail without a Message-ID, which could never be looked for, was accepted")
	}
}

func TestClerk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, ctx := newClerk(w.addresses()), t.Context()
	records, err := c.fetch(ctx, "t1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.score(ctx, records)
	if err != nil {
		t.Fatal(err)
	}
	if s.Ticket != "t1" || s.Urgency < 0 || s.Urgency > 100 || s.Reason == "" {
		t.Errorf("score %+v", s)
	}
	if _, err := c.score(ctx, nil); err == nil {
		t.Error("nothing was scored")
	}
	id, err := c.notify(ctx, "key@x", s)
	if err != nil || id != "key@x" || w.deliveries("key@x") != 1 {
		t.Errorf("notify with a Message-ID: %q, %v, %d deliveries", id, err, w.deliveries("key@x"))
	}
	random, err := c.notify(ctx, "", s)
	if err != nil || random == "" || w.deliveries(random) != 1 {
		t.Errorf("notify without one: %q, %v", random, err)
	}
	if err := c.complete(ctx, "k", "t1"); err != nil {
		t.Error(err)
	}
	if fetches, bills, emails := w.count("t1"); fetches != 1 || bills != 1 || emails != 2 {
		t.Errorf("got %d fetches, %d paid calls, %d e-mails; want 1, 1, 2", fetches, bills, emails)
	}
	w.close()
	if _, err := c.fetch(ctx, "t1"); err == nil {
		t.Error("a world that is gone has answered")
	}
}

func TestTableAndCheck(t *testing.T) {
	t.Parallel()
	good := row{Mode: durable, Crash: effectDone, Fetches: 1, PaidCalls: 1, Rows: 1, Emails: 1, State: "succeeded", Inbox: 1, run: "r1"}
	twice := row{Mode: plain, Crash: effectDone, Fetches: 2, PaidCalls: 2, Rows: 2, Emails: 2, State: "succeeded"}
	var out bytes.Buffer
	if err := writeRows(&out, text, []row{twice, good}); err != nil {
		t.Fatal(err)
	}
	if err := writeHints(&out, "bin/pawl", "x.db", []row{twice, good}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"WORKER KILLED           RUNNER  FETCHES  PAID CALLS  ROWS  E-MAILS  STATE      INBOX\n",
		"sent, not written down  plain   2        2           2     2        succeeded  0\n",
		"sent, not written down  pawl    1        1           1     1        succeeded  1\n",
		"  bin/pawl runs show r1 --db x.db\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	if err := check([]row{twice, good}); err != nil {
		t.Errorf("rows as they must be: %v", err)
	}
	for name, change := range map[string]func(*row){
		"e-mails":    func(r *row) { r.Emails = 2 },
		"no e-mail":  func(r *row) { r.Emails = 0 },
		"paid calls": func(r *row) { r.PaidCalls = 2 },
		"rows":       func(r *row) { r.Rows = 0 },
		"state":      func(r *row) { r.State = "failed" },
	} {
		bad := good
		change(&bad)
		if err := check([]row{bad}); err == nil {
			t.Errorf("%s: a wrong row of Pawl's is no error", name)
		}
	}
}

func TestHintsKeepThePassword(t *testing.T) {
	t.Parallel()
	for _, db := range []string{"postgres://u:secret@h/d", "postgres://u@h/d?password=secret", "postgres://u:secret@h:x/d"} {
		var out bytes.Buffer
		if err := writeHints(&out, "pawl", db, nil); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); strings.Contains(got, "secret") || strings.Contains(got, "xxxxx") ||
			!strings.Contains(got, "export PAWL_DB=") || !strings.Contains(got, "  pawl runs list\n") {
			t.Errorf("%s: hints that cannot be pasted, or tell too much:\n%s", db, got)
		}
	}
}

func TestMistypedURLIsNoFile(t *testing.T) {
	t.Parallel()
	for _, db := range []string{"u:secret@h/d", "mysql://u:secret@h/d"} {
		if err := checkDB(db); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", db, err)
		}
	}
	for _, db := range []string{"", "a.db", "dir/a:b@c.db", "postgres://u:secret@h/d"} {
		if err := checkDB(db); err != nil {
			t.Errorf("%s: %v", db, err)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]format{"text": text, "json": ndjson, "jsonl": ndjson} {
		var f format
		if err := f.Set(in); err != nil || f != want {
			t.Errorf("-o %s: got %q, %v, want %q", in, f, err, want)
		}
	}
	if err := new(format).Set("xml"); err == nil {
		t.Error("-o xml is a format")
	}
}

func TestShownHidesPassword(t *testing.T) {
	t.Parallel()
	for db, want := range map[string]string{
		"a/b.db":                        "a/b.db",
		"postgres://u:secret@h:5432/d":  "postgres://u:xxxxx@h:5432/d",
		"postgresql://u:secret@h/d?x=y": "postgresql://u:xxxxx@h/d?x=y",
	} {
		if got := shown(db); got != want {
			t.Errorf("shown(%q) = %q, want %q", db, got, want)
		}
	}
}

func TestWorkerNeedsItsOrders(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "{", "nonsense\n"} {
		if err := work(t.Context(), strings.NewReader(in), io.Discard, io.Discard); err == nil {
			t.Errorf("%q: the worker knows what to do", in)
		}
	}
}
