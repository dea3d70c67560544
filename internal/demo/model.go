package demo

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// The wire format of chat completions, as far as the demo uses it.
type (
	chatRequest struct {
		Model          string            `json:"model"`
		Messages       []chatMessage     `json:"messages"`
		ResponseFormat *chatFormat       `json:"response_format,omitempty"`
		Metadata       map[string]string `json:"metadata,omitempty"`
	}
	chatFormat struct {
		Type string `json:"type"`
	}
	chatMessage struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	chatResponse struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Choices []chatChoice `json:"choices"`
		Usage   chatUsage    `json:"usage"`
	}
	chatChoice struct {
		Index        int         `json:"index"`
		Message      chatMessage `json:"message"`
		FinishReason string      `json:"finish_reason"`
	}
	chatUsage struct {
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		TotalTokens      int64 `json:"total_tokens"`
	}
	chatError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
)

// priceOf is what a call costs, in millionths of a US dollar: 1 $ per million tokens in, 4 $ per million out.
func priceOf(u chatUsage) int64 { return u.PromptTokens + 4*u.CompletionTokens }

// handleChat is the model. A call that it accepts is on the bill of the ticket in its metadata before it is answered,
// whether or not anybody still waits for the answer.
func (w *world) handleChat(rw http.ResponseWriter, req *http.Request) {
	if key, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); !ok || key == "" {
		refuse(rw, http.StatusUnauthorized, "authentication_error", "you did not provide an API key")
		return
	}
	var in chatRequest
	if err := json.NewDecoder(http.MaxBytesReader(rw, req.Body, 1<<20)).Decode(&in); err != nil {
		refuse(rw, http.StatusBadRequest, "invalid_request_error", "the body is not JSON: "+err.Error())
		return
	}
	if in.Model == "" || len(in.Messages) == 0 {
		refuse(rw, http.StatusBadRequest, "invalid_request_error", "model and messages are required")
		return
	}
	w.mu.Lock()
	w.bills[in.Metadata["ticket"]]++
	w.mu.Unlock()

	tokensIn := 0
	for _, m := range in.Messages {
		tokensIn += 4 + len(m.Content)/4
	}
	last := in.Messages[len(in.Messages)-1].Content
	answer := fmt.Sprintf(`{"urgency": %d, "reason": "%d messages, the last one about a refund"}`, min(100, len(last)/3), strings.Count(last, "\n"))
	usage := chatUsage{PromptTokens: int64(tokensIn), CompletionTokens: int64(len(answer) / 4)}
	usage.TotalTokens = usage.PromptTokens + usage.CompletionTokens
	writeJSON(rw, http.StatusOK, chatResponse{
		ID:      "chatcmpl-" + rand.Text(),
		Object:  "chat.completion",
		Created: time.Now().Unix(),
		Model:   in.Model,
		Choices: []chatChoice{{Message: chatMessage{Role: "assistant", Content: answer}, FinishReason: "stop"}},
		Usage:   usage,
	})
}

// refuse answers with the format's error envelope. Nothing is billed.
func refuse(rw http.ResponseWriter, status int, kind, message string) {
	writeJSON(rw, status, map[string]chatError{"error": {Message: message, Type: kind}})
}
