// The progress engine of one channel.
//
// A call is a list of transfers. Each peer and direction has a FIFO queue of them, and only the
// head of a queue moves. Execute visits the queues round robin and moves at most kQuantumBytes of
// each, without blocking, until all queues are empty. Sends and receives therefore progress
// together in one thread: no order of the list can deadlock two ranks, and data moved last is still
// in the cache when the next queue needs it.
//
// Dependencies are by byte, not by message. `Transfer::after` names another transfer; a byte may
// move once that transfer has passed the same address (Allowed). This pipelines a ring: a chunk is
// forwarded while it still arrives, so each further step adds its latency only. It also permits
// in-place exchanges: a receive overwrites data after the send has read it.
//
// Invariants:
// - A header is sent only once the first byte of its payload may move.
// - A receiver checks the header before it accepts a byte of payload. A different tag or length is
//   an error that names both calls. A header may be read before a call expects it; it is then kept
//   until the next call (header_unchecked).
// - A message from a peer of which this call expects nothing is examined only after kMaxSleepMs
//   without progress, because a peer may legally be ahead by some kilobytes.
// - Data that a peer put into shared memory before its goodbye is delivered; then the queue fails.
//
// Alignment: zeros precede a header, so that the payload after it begins at a multiple of
// kPayloadAlignment in the link's stream of bytes. Both ends count the bytes of the stream, so the
// number of zeros is not transmitted.
//
// Waiting: a thread first spins, because sleeping and waking cost tens of microseconds, then polls
// the wake descriptor, the wakeup of shared memory, all control connections and the sockets of the
// blocked links. The number of spins adapts: it doubles when spinning was successful and halves
// when it was not. With more ranks than processors on the host, spinning delays the rank that is
// waited for and is almost disabled.
//
// Cost: no system call per message over shared memory while both sides are awake; one sendmsg and
// one recvmsg per message over TCP if the socket buffers have room. Memory: kBufferBytes per
// channel.
//
// Limits: the messages of a queue move in order, so a large message delays the messages after it.
// Background work therefore has a separate channel.
#include "comm/transport/channel.h"

#include <glog/logging.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/suspects.h"

namespace cadre {
namespace {

// Maximum bytes that one queue moves before the next one is visited.
constexpr size_t kQuantumBytes = size_t{128} << 10;
// Unaligned or incomplete elements are copied here for addition.
constexpr size_t kBufferBytes = 4096;
// Iterations without progress before a thread sleeps: some tens of microseconds, about the cost of
// sleeping and waking. Over TCP each iteration is a system call.
constexpr int kMaxSpins = 1000;
constexpr int kMaxSpinsTcp = 60;
constexpr int kMaxSpinsOversubscribed = 2;
// Spins between two calls of sched_yield.
constexpr int kSpinsPerYield = 32;
// A thread that never waits polls the control connections after so many iterations, and at most
// once per interval.
constexpr int kBusyIterations = 64;
constexpr std::chrono::milliseconds kPollInterval{1};
// Maximum sleep, and the time without progress after which a thread checks for unexpected messages.
constexpr int64_t kMaxSleepMs = 100;
// How long to wait for a peer's reason after its link has ended.
constexpr absl::Duration kReasonDelay = absl::Milliseconds(20);

static_assert(std::endian::native == std::endian::little, "headers are sent in memory order");

constexpr uint32_t kMessageMagic = 0x43e5ad7f;

// The wire format of a header.
struct WireHeader {
  uint32_t magic = kMessageMagic;
  uint32_t reserved = 0;
  CallTag tag;
  uint64_t length = 0;
};
static_assert(std::is_trivially_copyable_v<CallTag>);

uintptr_t Address(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }

absl::Status LeftError(int rank) {
  return WithSuspects(absl::UnavailableError(absl::StrCat("rank ", rank, " has left the group")),
                      {rank});
}

}  // namespace

Channel::Channel(const Options& options, std::vector<std::unique_ptr<Link>> links,
                 std::unique_ptr<Wakeup> wakeup, Socket wake, ControlConnections& control)
    : options_(options),
      links_(std::move(links)),
      wakeup_(std::move(wakeup)),
      wake_(std::move(wake)),
      control_(control),
      sends_(links_.size()),
      receives_(links_.size()),
      waits_for_(links_.size()),
      buffer_(kBufferBytes) {
  max_spins_ = kMaxSpins;
  for (int peer = 0; peer < std::ssize(links_); ++peer) {
    for (Queue* queue : {&sends_[peer], &receives_[peer]}) {
      queue->link = links_[peer].get();
      queue->peer = peer;
    }
    sends_[peer].sends = true;
    if (links_[peer] != nullptr && links_[peer]->kind() == LinkKind::kTcp) {
      max_spins_ = kMaxSpinsTcp;
    }
  }
  if (options_.oversubscribed) max_spins_ = kMaxSpinsOversubscribed;
  spin_limit_ = max_spins_;
  active_.reserve(2 * links_.size());
}

void Channel::Shutdown() {
  for (const auto& link : links_) {
    if (link != nullptr) link->Shutdown();
  }
}

absl::Status Channel::Run(const CallTag& tag, std::span<const Transfer> transfers,
                          const Combine& combine) {
  if (control_.failed()) return control_.status();
  call_ = {.tag = tag, .transfers = transfers, .combine = combine};
  absl::Status status = PollPeers();
  if (status.ok()) {
    Prepare();
    status = Execute();
  }
  // The end of a link may be noticed before the abort that caused it; Fail returns the first error.
  return status.ok() ? status : control_.Fail(status);
}

void Channel::Prepare() {
  progress_.assign(call_.transfers.size(), Progress{});
  active_.clear();
  for (int i = 0; i < std::ssize(call_.transfers); ++i) {
    const Transfer& transfer = call_.transfers[i];
    const int peer = transfer.peer;
    CHECK(peer >= 0 && peer < std::ssize(links_) && peer != options_.rank) << peer;
    auto& queues = transfer.kind == Transfer::Kind::kSend ? sends_ : receives_;
    Append(queues[peer], i);
  }
}

void Channel::Append(Queue& queue, int position) {
  if (queue.head == Transfer::kNone) {
    queue.head = position;
    active_.push_back(&queue);
  } else {
    progress_[queue.last].next = position;
  }
  queue.last = position;
}

absl::Status Channel::Execute() {
  spins_ = 0;
  idle_since_.reset();
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
    if (control_.failed()) return control_.status();
    if (moved_ == 0) {
      CADRE_RETURN_IF_ERROR(SpinOrSleep());
    } else {
      if (spins_ > 0) spin_limit_ = std::min(max_spins_, 2 * spin_limit_);
      spins_ = 0;
      idle_since_.reset();
      if (++busy_iterations_ >= kBusyIterations) CADRE_RETURN_IF_ERROR(PollPeers());
    }
  }
}

absl::Status Channel::Move(Queue& queue) {
  const size_t enough = moved_ + kQuantumBytes;
  bool blocked = false;
  while (queue.head != Transfer::kNone && !blocked && moved_ < enough) {
    CADRE_RETURN_IF_ERROR(queue.sends ? SendHead(queue, &blocked) : ReceiveHead(queue, &blocked));
  }
  return absl::OkStatus();
}

void Channel::Advance(Queue& queue, size_t bytes) {
  moved_ += bytes;
  queue.position += bytes;
}

absl::Status Channel::SendHead(Queue& queue, bool* blocked) {
  if (control_.left(queue.peer)) return LeftError(queue.peer);
  const Transfer& transfer = call_.transfers[queue.head];
  Progress& progress = progress_[queue.head];
  const size_t bytes = std::min(Allowed(transfer) - progress.done, kQuantumBytes);
  if (queue.prefix_bytes == 0) {
    if (transfer.data.empty() ? !IsUnblocked(transfer) : bytes == 0) {
      *blocked = true;
      return absl::OkStatus();
    }
    queue.prefix_bytes = PrefixBytes(queue.position);
    queue.prefix_done = 0;
    static_assert(sizeof(WireHeader) == kHeaderBytes);
    const WireHeader header{.tag = call_.tag, .length = transfer.data.size()};
    const size_t zeros = queue.prefix_bytes - sizeof header;
    std::memset(queue.prefix.data(), 0, zeros);
    std::memcpy(queue.prefix.data() + zeros, &header, sizeof header);
  }
  const auto prefix =
      std::span<const std::byte>(queue.prefix).first(queue.prefix_bytes).subspan(queue.prefix_done);
  if (prefix.empty() && bytes == 0) {
    *blocked = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<size_t> taken =
      queue.link->Write(prefix, transfer.data.subspan(progress.done, bytes));
  if (!taken.ok()) return LinkError(queue.peer, taken.status());
  *blocked = *taken < prefix.size() + bytes;
  Advance(queue, *taken);
  const size_t of_prefix = std::min(*taken, prefix.size());
  queue.prefix_done += of_prefix;
  progress.done += *taken - of_prefix;
  if (queue.prefix_done == queue.prefix_bytes && progress.done == transfer.data.size()) {
    Complete(queue);
  }
  return absl::OkStatus();
}

absl::Status Channel::ReceiveHead(Queue& queue, bool* blocked) {
  // Evaluated before reading: a peer writes to shared memory before it sends its goodbye, so if
  // `left` is true, all its data is already there.
  const bool left = queue.link->kind() != LinkKind::kTcp && control_.left(queue.peer);
  if (queue.prefix_bytes == 0 || queue.prefix_done < queue.prefix_bytes) {
    CADRE_RETURN_IF_ERROR(ReadHeader(queue, blocked));
    if (*blocked) return left ? LeftError(queue.peer) : absl::OkStatus();
    queue.header_unchecked = true;
  }
  if (std::exchange(queue.header_unchecked, false)) CADRE_RETURN_IF_ERROR(CheckHeader(queue));
  const Transfer& transfer = call_.transfers[queue.head];
  Progress& progress = progress_[queue.head];
  if (transfer.data.empty()) {
    *blocked = !IsUnblocked(transfer);
  } else {
    const size_t bytes = std::min(Allowed(transfer) - progress.done, kQuantumBytes);
    const auto into = transfer.data.subspan(progress.done, bytes);
    const uint64_t before = queue.position;
    const absl::StatusOr<size_t> got =
        transfer.kind == Transfer::Kind::kReceive ? Receive(queue, into) : ReceiveSum(queue, into);
    if (!got.ok()) return LinkError(queue.peer, got.status());
    progress.done += *got;
    *blocked = *got == 0;
    if (left && bytes > 0 && queue.position == before) return LeftError(queue.peer);
  }
  if (!*blocked && progress.done == transfer.data.size()) Complete(queue);
  return absl::OkStatus();
}

absl::Status Channel::ReadHeader(Queue& queue, bool* blocked) {
  if (queue.prefix_bytes == 0) {
    queue.prefix_bytes = PrefixBytes(queue.position);
    queue.prefix_done = 0;
    queue.partial_bytes = 0;
  }
  const auto prefix = std::span(queue.prefix).first(queue.prefix_bytes);
  const absl::StatusOr<size_t> got = queue.link->Read(prefix.subspan(queue.prefix_done));
  if (!got.ok()) return LinkError(queue.peer, got.status());
  Advance(queue, *got);
  queue.prefix_done += *got;
  *blocked = queue.prefix_done < queue.prefix_bytes;
  return absl::OkStatus();
}

// If ranks disagree about a call, each of them may wait for a rank that sends to another rank
// instead. A message of a later call of these members, or of other members, is legal: its sender is
// ahead.
absl::Status Channel::CheckUnexpected() {
  for (Queue& queue : receives_) {
    if (queue.link == nullptr || queue.head != Transfer::kNone || control_.left(queue.peer)) {
      continue;
    }
    if (!queue.header_unchecked) {
      bool blocked = false;
      CADRE_RETURN_IF_ERROR(ReadHeader(queue, &blocked));
      if (blocked) continue;
      queue.header_unchecked = true;
    }
    CADRE_ASSIGN_OR_RETURN(const Header header, HeaderOf(queue));
    // Sequence numbers may wrap around.
    const int32_t ahead = header.tag.sequence - call_.tag.sequence;
    if (header.tag.group != call_.tag.group || ahead > 0) continue;
    return absl::InternalError(absl::StrCat("rank ", queue.peer, " is at ", header.tag.ToString(),
                                            "; rank ", options_.rank, " at ",
                                            call_.tag.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Channel::Header> Channel::HeaderOf(const Queue& queue) const {
  WireHeader header;
  std::memcpy(&header, queue.prefix.data() + queue.prefix_bytes - sizeof header, sizeof header);
  if (header.magic == kMessageMagic) return Header{.tag = header.tag, .length = header.length};
  return WithSuspects(
      absl::InternalError(absl::StrCat("rank ", queue.peer, " sent an invalid message header")),
      {queue.peer});
}

absl::StatusOr<size_t> Channel::Receive(Queue& queue, std::span<std::byte> into) {
  if (into.empty()) return 0;
  absl::StatusOr<size_t> got = queue.link->Read(into);
  if (got.ok()) Advance(queue, *got);
  return got;
}

absl::StatusOr<size_t> Channel::ReceiveSum(Queue& queue, std::span<std::byte> into) {
  const size_t element = call_.combine.element;
  into = into.first(into.size() / element * element);
  if (into.empty()) return 0;
  CADRE_ASSIGN_OR_RETURN(const std::span<const std::byte> peeked,
                         queue.link->Peek(into.size() - queue.partial_bytes));
  if (peeked.empty()) return 0;
  if (queue.partial_bytes > 0 || peeked.size() < element || Address(peeked.data()) % element != 0) {
    return AddThroughBuffer(queue, peeked, into);
  }
  const size_t whole = peeked.size() / element * element;
  call_.combine.add(into.data(), peeked.data(), whole);
  queue.link->Consume(whole);
  Advance(queue, whole);
  return whole;
}

size_t Channel::AddThroughBuffer(Queue& queue, std::span<const std::byte> peeked,
                                 std::span<std::byte> into) {
  const size_t element = call_.combine.element;
  const size_t taken = std::min(peeked.size(), buffer_.size() - queue.partial_bytes);
  std::memcpy(buffer_.data(), queue.partial.data(), queue.partial_bytes);
  std::memcpy(buffer_.data() + queue.partial_bytes, peeked.data(), taken);
  queue.link->Consume(taken);
  Advance(queue, taken);
  const size_t bytes = queue.partial_bytes + taken;
  const size_t whole = bytes / element * element;
  if (whole > 0) call_.combine.add(into.data(), buffer_.data(), whole);
  queue.partial_bytes = bytes - whole;
  std::memcpy(queue.partial.data(), buffer_.data() + whole, queue.partial_bytes);
  return whole;
}

absl::Status Channel::CheckHeader(const Queue& queue) const {
  CADRE_ASSIGN_OR_RETURN(const Header header, HeaderOf(queue));
  const size_t expected = call_.transfers[queue.head].data.size();
  if (header.tag == call_.tag && header.length == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", queue.peer, " is at ", header.tag.ToString(),
                                          ", ", header.length, " bytes; rank ", options_.rank,
                                          " at ", call_.tag.ToString(), ", ", expected, " bytes"));
}

size_t Channel::Allowed(const Transfer& transfer) const {
  if (IsUnblocked(transfer)) return transfer.data.size();
  const Transfer& other = call_.transfers[transfer.after];
  const uintptr_t from = Address(other.data.data());
  const uintptr_t passed = from + progress_[transfer.after].done;
  const uintptr_t begin = Address(transfer.data.data());
  if (begin < from || begin >= passed) return 0;
  return std::min(transfer.data.size(), passed - begin);
}

bool Channel::IsUnblocked(const Transfer& transfer) const {
  return transfer.after == Transfer::kNone || progress_[transfer.after].complete;
}

bool Channel::WaitsForLink(const Queue& queue) const {
  const Transfer& transfer = call_.transfers[queue.head];
  const bool has_prefix = queue.prefix_bytes > 0;
  // Headers are received immediately but sent with the first byte of the payload.
  if (!queue.sends && (!has_prefix || queue.prefix_done < queue.prefix_bytes)) return true;
  if (queue.sends && has_prefix && queue.prefix_done < queue.prefix_bytes) return true;
  if (transfer.data.empty()) return queue.sends && IsUnblocked(transfer);
  const size_t element =
      transfer.kind == Transfer::Kind::kReceiveSum ? call_.combine.element : size_t{1};
  const size_t bytes = Allowed(transfer) - progress_[queue.head].done;
  return bytes >= element;
}

void Channel::Complete(Queue& queue) {
  Progress& progress = progress_[queue.head];
  progress.complete = true;
  // An empty message counts as progress, too, because another transfer may depend on it.
  ++moved_;
  queue.head = progress.next;
  queue.prefix_bytes = 0;
}

absl::Status Channel::SpinOrSleep() {
  if (spins_ < spin_limit_) {
    ++spins_;
    if (options_.oversubscribed || spins_ % kSpinsPerYield == 0) sched_yield();
    return absl::OkStatus();
  }
  // Spinning was not successful: a thread whose waits are long yields the processor to others.
  spin_limit_ = std::max(max_spins_ / 16, spin_limit_ / 2);
  spins_ = 0;
  return Sleep();
}

absl::Status Channel::Sleep() {
  const SteadyClock::time_point now = SteadyClock::now();
  if (!idle_since_) idle_since_ = now;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      absl::ToChronoNanoseconds(options_.timeout) - (now - *idle_since_));
  if (left.count() <= 0) return TimeoutError();

  polled_.clear();
  polled_.push_back({.fd = wake_.fd(), .events = POLLIN});
  polled_.push_back({.fd = wakeup_->fd(), .events = POLLIN});
  const size_t peers_begin = polled_.size();
  control_.AddPolled(polled_);
  const size_t peers_end = polled_.size();
  // If a link is ready, poll without waiting, to notice control messages.
  const bool sleeps = PrepareWaits() && !control_.failed();
  const int wait = sleeps ? std::min<int64_t>(left.count(), kMaxSleepMs) : 0;
  if (poll(polled_.data(), polled_.size(), wait) < 0) {
    if (errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    for (pollfd& entry : polled_) entry.revents = 0;
  }
  for (Link* link : prepared_) link->EndWait();
  if (polled_[0].revents != 0) ClearWake(wake_);
  if (polled_[1].revents != 0) wakeup_->Clear();
  const bool notified = std::any_of(polled_.begin() + peers_begin, polled_.begin() + peers_end,
                                    [](const pollfd& entry) { return entry.revents != 0; });
  if (notified) CADRE_RETURN_IF_ERROR(control_.Poll());
  return now - *idle_since_ >= std::chrono::milliseconds(kMaxSleepMs) ? CheckUnexpected()
                                                                      : absl::OkStatus();
}

bool Channel::PrepareWaits() {
  constexpr int kToRead = 1;
  constexpr int kToWrite = 2;
  prepared_.clear();
  for (const Queue* queue : active_) {
    if (!WaitsForLink(*queue)) continue;
    waits_for_[queue->peer] |= queue->sends ? kToWrite : kToRead;
  }
  bool must_sleep = true;
  for (const Queue* queue : active_) {
    // The first queue of a peer prepares the link for both directions.
    const int waits_for = std::exchange(waits_for_[queue->peer], 0);
    if (waits_for == 0) continue;
    prepared_.push_back(queue->link);
    if (!queue->link->PrepareWait((waits_for & kToRead) != 0, (waits_for & kToWrite) != 0,
                                  polled_)) {
      must_sleep = false;
    }
  }
  return must_sleep;
}

absl::Status Channel::PollPeers() {
  busy_iterations_ = 0;
  const SteadyClock::time_point now = SteadyClock::now();
  if (now - last_poll_ < kPollInterval) return absl::OkStatus();
  last_poll_ = now;
  polled_.clear();
  control_.AddPolled(polled_);
  if (polled_.empty() || poll(polled_.data(), polled_.size(), 0) <= 0) return absl::OkStatus();
  return control_.Poll();
}

absl::Status Channel::TimeoutError() const {
  std::string what;
  std::vector<int> peers;
  for (const Queue* queue : active_) {
    if (!WaitsForLink(*queue)) continue;
    peers.push_back(queue->peer);
    absl::StrAppend(&what, what.empty() ? "" : " and ",
                    queue->sends ? "sending to rank " : "receiving from rank ", queue->peer);
  }
  return WithSuspects(
      absl::DeadlineExceededError(absl::StrCat("rank ", options_.rank, " made no progress ", what,
                                               " for ", absl::FormatDuration(options_.timeout))),
      peers);
}

absl::Status Channel::LinkError(int peer, const absl::Status& error) {
  // The reason that the peer sends is closer to the cause than the end of its stream.
  CADRE_RETURN_IF_ERROR(control_.AwaitNotice(peer, kReasonDelay));
  if (control_.left(peer)) return LeftError(peer);
  return WithSuspects(
      absl::UnavailableError(absl::StrCat("rank ", peer, " is lost: ", error.message())), {peer});
}

}  // namespace cadre
