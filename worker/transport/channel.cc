#include "worker/transport/channel.h"

#include <glog/logging.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Most bytes that one queue moves before the others have their turn: what was moved last is still
// in the cache when the next queue wants it.
constexpr size_t kBiteBytes = size_t{128} << 10;
// Where the elements of a message do not lie as they must for adding, they are put right here.
constexpr size_t kBufferBytes = 4096;
// Turns without movement before a thread sleeps: some tens of microseconds, about what sleeping
// and waking cost. Each turn of TCP is a system call.
constexpr int kMostTurns = 1000;
constexpr int kMostTurnsTcp = 60;
constexpr int kMostTurnsCrowded = 2;
// Turns between two offers of the processor to whoever else wants it.
constexpr int kTurnsPerYield = 32;
// A thread that never waits looks at the control connections this often.
constexpr int kBusyTurns = 64;
constexpr std::chrono::milliseconds kLookEvery{1};
// Longest sleep; and after how much of it without movement a thread looks for messages that nobody
// expects.
constexpr int64_t kNapMs = 100;
// A link that ends before its peer's word has come: how long to wait for the word.
constexpr absl::Duration kWordDelay = absl::Milliseconds(20);

uintptr_t Address(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }

absl::Status HasLeft(int rank) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " has left the group"));
}

}  // namespace

Channel::Channel(const Options& options, std::vector<std::unique_ptr<Link>> links,
                 std::unique_ptr<Bell> bell, Socket wake, ControlConnections& control)
    : options_(options),
      links_(std::move(links)),
      bell_(std::move(bell)),
      wake_(std::move(wake)),
      control_(control),
      sends_(links_.size()),
      receives_(links_.size()),
      wanted_(links_.size()),
      buffer_(kBufferBytes) {
  most_turns_ = kMostTurns;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    for (Queue* queue : {&sends_[peer], &receives_[peer]}) {
      queue->link = links_[peer].get();
      queue->peer = static_cast<int>(peer);
    }
    sends_[peer].sends = true;
    if (links_[peer] != nullptr && links_[peer]->kind() == LinkKind::kTcp) {
      most_turns_ = kMostTurnsTcp;
    }
  }
  if (options_.crowded) most_turns_ = kMostTurnsCrowded;
  worth_turns_ = most_turns_;
  active_.reserve(2 * links_.size());
}

void Channel::Shutdown() {
  for (const auto& link : links_) {
    if (link != nullptr) link->Shutdown();
  }
}

absl::Status Channel::Run(const CallTag& tag, std::span<const Transfer> transfers,
                          const Combine& combine) {
  if (control_.dead()) return control_.status();
  call_ = {.tag = tag, .transfers = transfers, .combine = combine};
  absl::Status status = LookAtPeers();
  if (status.ok()) {
    Prepare();
    status = Execute();
  }
  // A link may be seen to end before the abort that ended it: the first error is the last word.
  return status.ok() ? status : control_.Fail(status);
}

void Channel::Prepare() {
  progress_.assign(call_.transfers.size(), Progress{});
  active_.clear();
  for (size_t i = 0; i < call_.transfers.size(); ++i) {
    const Transfer& transfer = call_.transfers[i];
    const int peer = transfer.peer;
    CHECK(peer >= 0 && peer < static_cast<int>(links_.size()) && peer != options_.rank) << peer;
    auto& queues = transfer.kind == Transfer::Kind::kSend ? sends_ : receives_;
    Append(queues[static_cast<size_t>(peer)], static_cast<int>(i));
  }
}

void Channel::Append(Queue& queue, int position) {
  if (queue.head == Transfer::kNone) {
    queue.head = position;
    active_.push_back(&queue);
  } else {
    progress_[static_cast<size_t>(queue.last)].next = position;
  }
  queue.last = position;
}

absl::Status Channel::Execute() {
  idle_turns_ = 0;
  idle_since_known_ = false;
  while (true) {
    moved_ = 0;
    for (size_t i = 0; i < active_.size();) {
      CADRE_RETURN_IF_ERROR(Move(*active_[i]));
      if (active_[i]->head == Transfer::kNone) {
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
    if (active_.empty()) return absl::OkStatus();
    if (control_.dead()) return control_.status();
    if (moved_ == 0) {
      CADRE_RETURN_IF_ERROR(Idle());
    } else {
      if (idle_turns_ > 0) worth_turns_ = std::min(most_turns_, 2 * worth_turns_);
      idle_turns_ = 0;
      idle_since_known_ = false;
      if (++busy_turns_ >= kBusyTurns) CADRE_RETURN_IF_ERROR(LookAtPeers());
    }
  }
}

absl::Status Channel::Move(Queue& queue) {
  const size_t enough = moved_ + kBiteBytes;
  bool stuck = false;
  while (queue.head != Transfer::kNone && !stuck && moved_ < enough) {
    CADRE_RETURN_IF_ERROR(queue.sends ? MoveOut(queue, &stuck) : MoveIn(queue, &stuck));
  }
  return absl::OkStatus();
}

absl::Status Channel::MoveOut(Queue& queue, bool* stuck) {
  if (control_.left(queue.peer)) return HasLeft(queue.peer);
  const Transfer& transfer = call_.transfers[static_cast<size_t>(queue.head)];
  Progress& progress = progress_[static_cast<size_t>(queue.head)];
  const size_t bytes = std::min(Allowed(transfer) - progress.done, kBiteBytes);
  if (queue.prefix_bytes == 0) {
    if (transfer.data.empty() ? !IsFree(transfer) : bytes == 0) {
      *stuck = true;
      return absl::OkStatus();
    }
    queue.prefix_bytes = PrefixBytes(queue.position);
    queue.prefix_done = 0;
    WritePrefix({.tag = call_.tag, .length = transfer.data.size()},
                std::span(queue.prefix).first(queue.prefix_bytes));
  }
  const auto prefix =
      std::span<const std::byte>(queue.prefix).first(queue.prefix_bytes).subspan(queue.prefix_done);
  if (prefix.empty() && bytes == 0) {
    *stuck = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<size_t> taken =
      queue.link->Write(prefix, transfer.data.subspan(progress.done, bytes));
  if (!taken.ok()) return LinkFailed(queue.peer, taken.status());
  *stuck = *taken < prefix.size() + bytes;
  moved_ += *taken;
  queue.position += *taken;
  const size_t of_prefix = std::min(*taken, prefix.size());
  queue.prefix_done += of_prefix;
  progress.done += *taken - of_prefix;
  if (queue.prefix_done == queue.prefix_bytes && progress.done == transfer.data.size()) {
    Complete(queue);
  }
  return absl::OkStatus();
}

absl::Status Channel::MoveIn(Queue& queue, bool* stuck) {
  // Before anything is read: what a peer put into shared memory it put there before it said
  // goodbye.
  const bool left = queue.link->kind() != LinkKind::kTcp && control_.left(queue.peer);
  if (queue.prefix_bytes == 0 || queue.prefix_done < queue.prefix_bytes) {
    CADRE_RETURN_IF_ERROR(ReadHeader(queue, stuck));
    if (*stuck) return left ? HasLeft(queue.peer) : absl::OkStatus();
    queue.early = true;
  }
  if (std::exchange(queue.early, false)) CADRE_RETURN_IF_ERROR(CheckHeader(queue));
  const Transfer& transfer = call_.transfers[static_cast<size_t>(queue.head)];
  Progress& progress = progress_[static_cast<size_t>(queue.head)];
  if (transfer.data.empty()) {
    *stuck = !IsFree(transfer);
  } else {
    const size_t bytes = std::min(Allowed(transfer) - progress.done, kBiteBytes);
    const auto into = transfer.data.subspan(progress.done, bytes);
    const uint64_t before = queue.position;
    const absl::StatusOr<size_t> got =
        transfer.kind == Transfer::Kind::kReceive ? Receive(queue, into) : ReceiveSum(queue, into);
    if (!got.ok()) return LinkFailed(queue.peer, got.status());
    progress.done += *got;
    *stuck = *got == 0;
    if (left && bytes > 0 && queue.position == before) return HasLeft(queue.peer);
  }
  if (!*stuck && progress.done == transfer.data.size()) Complete(queue);
  return absl::OkStatus();
}

absl::Status Channel::ReadHeader(Queue& queue, bool* stuck) {
  if (queue.prefix_bytes == 0) {
    queue.prefix_bytes = PrefixBytes(queue.position);
    queue.prefix_done = 0;
    queue.part_bytes = 0;
  }
  const auto prefix = std::span(queue.prefix).first(queue.prefix_bytes);
  const absl::StatusOr<size_t> got = queue.link->Read(prefix.subspan(queue.prefix_done));
  if (!got.ok()) return LinkFailed(queue.peer, got.status());
  moved_ += *got;
  queue.position += *got;
  queue.prefix_done += *got;
  *stuck = queue.prefix_done < queue.prefix_bytes;
  return absl::OkStatus();
}

// Ranks that disagree may each wait for somebody who sends to somebody else. A peer that is ahead
// is at a later call of these members, or at one of others.
absl::Status Channel::LookForStrays() {
  for (Queue& queue : receives_) {
    if (queue.link == nullptr || queue.head != Transfer::kNone || control_.left(queue.peer)) {
      continue;
    }
    if (!queue.early) {
      bool stuck = false;
      CADRE_RETURN_IF_ERROR(ReadHeader(queue, &stuck));
      if (stuck) continue;
      queue.early = true;
    }
    const absl::StatusOr<MessageHeader> header = HeaderOf(queue);
    CADRE_RETURN_IF_ERROR(header.status());
    const auto ahead = static_cast<int32_t>(header->tag.sequence - call_.tag.sequence);
    if (header->tag.group != call_.tag.group || ahead > 0) continue;
    return absl::InternalError(absl::StrCat("rank ", queue.peer, " is at ", header->tag.ToString(),
                                            "; rank ", options_.rank, " at ",
                                            call_.tag.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<MessageHeader> Channel::HeaderOf(const Queue& queue) const {
  absl::StatusOr<MessageHeader> header =
      ReadPrefix(std::span<const std::byte>(queue.prefix).first(queue.prefix_bytes));
  if (header.ok()) return header;
  return absl::InternalError(absl::StrCat("rank ", queue.peer, " sent what is not a message"));
}

absl::StatusOr<size_t> Channel::Receive(Queue& queue, std::span<std::byte> into) {
  if (into.empty()) return 0;
  absl::StatusOr<size_t> got = queue.link->Read(into);
  if (got.ok()) {
    moved_ += *got;
    queue.position += *got;
  }
  return got;
}

absl::StatusOr<size_t> Channel::ReceiveSum(Queue& queue, std::span<std::byte> into) {
  const size_t element = call_.combine.element;
  into = into.first(into.size() / element * element);
  if (into.empty()) return 0;
  CADRE_ASSIGN_OR_RETURN(const std::span<const std::byte> shown,
                         queue.link->Peek(into.size() - queue.part_bytes));
  if (shown.empty()) return 0;
  if (queue.part_bytes > 0 || shown.size() < element || Address(shown.data()) % element != 0) {
    return AddThroughBuffer(queue, shown, into);
  }
  const size_t whole = shown.size() / element * element;
  call_.combine.add(into.data(), shown.data(), whole);
  queue.link->Consume(whole);
  moved_ += whole;
  queue.position += whole;
  return whole;
}

size_t Channel::AddThroughBuffer(Queue& queue, std::span<const std::byte> shown,
                                 std::span<std::byte> into) {
  const size_t element = call_.combine.element;
  const size_t taken = std::min(shown.size(), buffer_.size() - queue.part_bytes);
  std::memcpy(buffer_.data(), queue.part.data(), queue.part_bytes);
  std::memcpy(buffer_.data() + queue.part_bytes, shown.data(), taken);
  queue.link->Consume(taken);
  moved_ += taken;
  queue.position += taken;
  const size_t bytes = queue.part_bytes + taken;
  const size_t whole = bytes / element * element;
  if (whole > 0) call_.combine.add(into.data(), buffer_.data(), whole);
  queue.part_bytes = bytes - whole;
  std::memcpy(queue.part.data(), buffer_.data() + whole, queue.part_bytes);
  return whole;
}

absl::Status Channel::CheckHeader(const Queue& queue) const {
  const absl::StatusOr<MessageHeader> header = HeaderOf(queue);
  CADRE_RETURN_IF_ERROR(header.status());
  const size_t expected = call_.transfers[static_cast<size_t>(queue.head)].data.size();
  if (header->tag == call_.tag && header->length == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", queue.peer, " is at ", header->tag.ToString(),
                                          ", ", header->length, " bytes; rank ", options_.rank,
                                          " at ", call_.tag.ToString(), ", ", expected, " bytes"));
}

size_t Channel::Allowed(const Transfer& transfer) const {
  if (IsFree(transfer)) return transfer.data.size();
  const Transfer& other = call_.transfers[static_cast<size_t>(transfer.after)];
  const uintptr_t from = Address(other.data.data());
  const uintptr_t passed = from + progress_[static_cast<size_t>(transfer.after)].done;
  const uintptr_t begin = Address(transfer.data.data());
  if (begin < from || begin >= passed) return 0;
  return std::min(transfer.data.size(), passed - begin);
}

bool Channel::IsFree(const Transfer& transfer) const {
  return transfer.after == Transfer::kNone ||
         progress_[static_cast<size_t>(transfer.after)].complete;
}

bool Channel::WaitsForLink(const Queue& queue) const {
  const Transfer& transfer = call_.transfers[static_cast<size_t>(queue.head)];
  const bool begun = queue.prefix_bytes > 0;
  // Headers of what comes are read at once; those of what goes, with the first byte.
  if (!queue.sends && (!begun || queue.prefix_done < queue.prefix_bytes)) return true;
  if (queue.sends && begun && queue.prefix_done < queue.prefix_bytes) return true;
  if (transfer.data.empty()) return queue.sends && IsFree(transfer);
  const size_t element =
      transfer.kind == Transfer::Kind::kReceiveSum ? call_.combine.element : size_t{1};
  const size_t bytes = Allowed(transfer) - progress_[static_cast<size_t>(queue.head)].done;
  return bytes >= element;
}

void Channel::Complete(Queue& queue) {
  Progress& progress = progress_[static_cast<size_t>(queue.head)];
  progress.complete = true;
  // The end of an empty message, too, may be what others wait for.
  ++moved_;
  queue.head = progress.next;
  queue.prefix_bytes = 0;
}

absl::Status Channel::Idle() {
  if (idle_turns_ < worth_turns_) {
    ++idle_turns_;
    if (options_.crowded || idle_turns_ % kTurnsPerYield == 0) sched_yield();
    return absl::OkStatus();
  }
  // It was in vain; a thread that mostly waits long leaves the processor to those that compute.
  worth_turns_ = std::max(most_turns_ / 16, worth_turns_ / 2);
  idle_turns_ = 0;
  return Sleep();
}

absl::Status Channel::Sleep() {
  const SteadyClock::time_point now = SteadyClock::now();
  if (!idle_since_known_) idle_since_ = now;
  idle_since_known_ = true;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      absl::ToChronoNanoseconds(options_.timeout) - (now - idle_since_));
  if (left.count() <= 0) return TimedOut();

  polled_.clear();
  polled_.push_back({.fd = wake_.fd(), .events = POLLIN});
  polled_.push_back({.fd = bell_->fd(), .events = POLLIN});
  const size_t peers_begin = polled_.size();
  control_.AddPolled(polled_);
  const size_t peers_end = polled_.size();
  // Where there is something to move already, the news are looked at all the same.
  const bool sleeps = PrepareLinks() && !control_.dead();
  const int wait = sleeps ? static_cast<int>(std::min<int64_t>(left.count(), kNapMs)) : 0;
  if (poll(polled_.data(), polled_.size(), wait) < 0) {
    if (errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    for (pollfd& entry : polled_) entry.revents = 0;
  }
  for (Link* link : prepared_) link->EndWait();
  if (polled_[0].revents != 0) ClearWake(wake_);
  if (polled_[1].revents != 0) bell_->Clear();
  const bool news = std::any_of(polled_.begin() + static_cast<ptrdiff_t>(peers_begin),
                                polled_.begin() + static_cast<ptrdiff_t>(peers_end),
                                [](const pollfd& entry) { return entry.revents != 0; });
  if (news) CADRE_RETURN_IF_ERROR(control_.Look());
  return now - idle_since_ >= std::chrono::milliseconds(kNapMs) ? LookForStrays()
                                                                : absl::OkStatus();
}

bool Channel::PrepareLinks() {
  constexpr int kToRead = 1;
  constexpr int kToWrite = 2;
  prepared_.clear();
  for (const Queue* queue : active_) {
    if (!WaitsForLink(*queue)) continue;
    wanted_[static_cast<size_t>(queue->peer)] |= queue->sends ? kToWrite : kToRead;
  }
  bool nothing = true;
  for (const Queue* queue : active_) {
    // The first queue of a peer sees to both.
    const int wanted = std::exchange(wanted_[static_cast<size_t>(queue->peer)], 0);
    if (wanted == 0) continue;
    prepared_.push_back(queue->link);
    if (!queue->link->PrepareWait((wanted & kToRead) != 0, (wanted & kToWrite) != 0, polled_)) {
      nothing = false;
    }
  }
  return nothing;
}

absl::Status Channel::LookAtPeers() {
  busy_turns_ = 0;
  const SteadyClock::time_point now = SteadyClock::now();
  if (now - looked_ < kLookEvery) return absl::OkStatus();
  looked_ = now;
  polled_.clear();
  control_.AddPolled(polled_);
  if (polled_.empty() || poll(polled_.data(), polled_.size(), 0) <= 0) return absl::OkStatus();
  return control_.Look();
}

absl::Status Channel::TimedOut() const {
  std::string what;
  for (const Queue* queue : active_) {
    if (!WaitsForLink(*queue)) continue;
    absl::StrAppend(&what, what.empty() ? "" : " and ",
                    queue->sends ? "sending to rank " : "receiving from rank ", queue->peer);
  }
  return absl::DeadlineExceededError(absl::StrCat("rank ", options_.rank, " made no progress ",
                                                  what, " for ",
                                                  absl::FormatDuration(options_.timeout)));
}

absl::Status Channel::LinkFailed(int peer, const absl::Status& error) {
  // What the peer says of its end is nearer to the cause than that its bytes ceased.
  CADRE_RETURN_IF_ERROR(control_.AwaitWord(peer, kWordDelay));
  if (control_.left(peer)) return HasLeft(peer);
  return absl::UnavailableError(absl::StrCat("rank ", peer, " is lost: ", error.message()));
}

}  // namespace cadre
