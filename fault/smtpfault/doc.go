// Package smtpfault hands an e-mail to a mail server and says what a failure proves: that nothing was accepted, or that
// nobody knows. It is made for a step that must not happen twice, because SMTP has no key by which a server would
// recognise a second copy. The commands are spoken by the client of github.com/wneessen/go-mail.
//
//	server := &smtpfault.Server{Addr: "mail.example.com:587", Username: "shop", Password: secret}
//	receipt, err := server.Send(ctx, "shop@example.com", []string{"customer@example.com"}, msg)
//
// Every error is a [fault.Fault] with class and outcome set, ready to be returned from a step:
//
//	what happened                                       class              outcome
//	no connection, no TLS, lost before MAIL             transient, or the  not_sent
//	                                                    cause's own
//	lost from MAIL to the last byte before the dot      transient          rejected
//	reply 4yz to any command, the final dot included    transient          rejected
//	reply 5yz to any command, the final dot included    by its meaning     rejected
//	lost, cut off or unreadable after the final dot     outcome_unknown    maybe_executed
//	reply 2yz to the final dot, whatever follows        none: it is sent
//
// A server accepts a message with its reply to the final dot and not before, and has to forget one that was not
// ended (RFC 5321, 3.8 and 4.1.1.4). That is the proof behind the second line. Behind the last but one there is none:
// such a mail must be looked for by its Message-ID, which the error's text names.
//
// The end of ctx closes the connection in any phase and is judged like a lost one. Without a deadline, ten minutes of
// silence count as a loss.
//
// # Meanings
//
// The enhanced status (RFC 3463) decides before the reply code, and both before the phase:
//
//	x.1.1 and kin        invalid_request (no_such_mailbox)
//	4.2.2, 5.2.2         a full mailbox: transient (mailbox_busy), quota_exhausted (storage_full)
//	4.7.z                transient (mail_deferred): greylisting and rates, with the delay if the text tells one
//	53z, 5.7.8           access_denied (authentication)
//	5.7.z up to MAIL     access_denied (authorization): nothing but us can be meant
//	5.7.z later          content_policy (message_blocked)
//	5yz on arrival       access_denied (authorization): we may not hand in mail here
//	550 for a message    content_policy (message_blocked)
//
// # Several recipients
//
// A mail goes to all of its recipients or to none: if one is refused, the others are still asked, so that the error
// names all that are wrong, and then the transaction is given up before DATA. Who wants some to have it without the
// others sends a mail to each, in a step for each.
package smtpfault
