// The sessions of a member: the one in which its runner trains, and the one that the runner takes
// next. AssignmentMachine (member/assignment.h) decides what happens to them. A newer assignment
// replaces a session that waits. Its drivers are member/group_member, whose runner is a thread, and
// tests/simulation/simulated_worker.
//
// Thread-compatible. Sessions are shared, because the runner uses its session without the lock of
// the others.
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "member/assignment.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

template <typename Session>
class SessionSlots {
 public:
  using Make = absl::FunctionRef<std::shared_ptr<Session>(const v1::Assignment&)>;
  using Send = absl::FunctionRef<void(const v1::MemberMessage&)>;

  // Carries out the actions, in order. Sessions that begin are made with `make`.
  void CarryOut(const AssignmentMachine::Actions& actions, Make make, Send send) {
    for (const AssignmentMachine::Action& action : actions) {
      if (const auto* begin = std::get_if<AssignmentMachine::Begin>(&action)) {
        waiting_ = make(begin->assignment);
      } else if (const auto* cancel = std::get_if<AssignmentMachine::Cancel>(&action)) {
        if (current_ != nullptr) current_->Cancel(cancel->reason);
        waiting_.reset();
      } else if (const auto* sent = std::get_if<AssignmentMachine::Send>(&action)) {
        send(sent->message);
      } else if (const auto* deliver = std::get_if<AssignmentMachine::Deliver>(&action)) {
        // The session of the current rank slot may still be waiting.
        Session* const session = waiting_ != nullptr ? waiting_.get() : current_.get();
        if (session != nullptr) session->Deliver(deliver->message);
      }
    }
  }

  bool waits() const { return waiting_ != nullptr; }
  // The session in which the runner trains; null if none.
  const std::shared_ptr<Session>& current() const { return current_; }
  // The runner takes the session that waits. Requires: waits().
  std::shared_ptr<Session> TakeNext() { return current_ = std::exchange(waiting_, nullptr); }
  // The runner has left its session.
  void Leave() { current_.reset(); }

 private:
  std::shared_ptr<Session> waiting_;
  std::shared_ptr<Session> current_;
};

}  // namespace cadre
