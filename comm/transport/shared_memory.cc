// Shared-memory links: two single-producer, single-consumer ring buffers per channel and pair of
// ranks.
//
// Each ring has two counters that only grow: `written`, stored by the writer, and `read`, stored by
// the reader, each on a separate cache line. The difference is the number of bytes in the ring;
// the position in memory is the counter modulo the size, a power of two. Both sides cache the
// other's counter and reload it only when the ring looks full or empty, which avoids most cache
// misses. The design follows the usual Lamport queue with cached indices.
//
// Publication is batched: the writer stores `written` after every kPublishBytes and the reader
// stores `read` after as many, so that both copy at the same time on different parts of the ring.
//
// Sleeping: before a side sleeps it sets its flag and then reads the other's counter; the other
// side stores its counter and then reads the flag. All four operations are sequentially consistent,
// so at least one side sees the other's store (Dekker's argument) and no wakeup is lost. The signal
// itself is a datagram (wakeup.h), sent only if the flag was set: a pair that is busy makes no
// system calls.
//
// Lifetime: the memory is a sealed memfd without a name. The other process opens it through
// /proc/PID/fd/FD, which the kernel permits for processes of the same user and PID namespace, and
// verifies a nonce inside, since a PID or descriptor may have been reused in the meantime. The
// seals prevent a truncation, which would turn accesses into SIGBUS. The kernel frees the memory
// with its last mapping, also after SIGKILL: nothing remains in /dev/shm.
//
// Trust: counters come from another process. A difference larger than the ring is an error and
// never an access outside it.
//
// Limits: one reader and one writer per ring; 1 MiB per direction and channel, committed when
// touched; a peer that dies does not change the ring, its control connection reports the loss.
#include "comm/transport/shared_memory.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/identity.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kRing = SharedSegment::kRingBytes;
constexpr int kRings = 2 * Transport::kChannels;
// The kernel displays the memfd under this name.
constexpr char kMemoryName[] = "cadre-ring";
// A writer publishes written bytes, and a reader frees read bytes, in batches of this size, so that
// both sides work concurrently. Some of the room may therefore not be available to the writer yet.
constexpr size_t kPublishBytes = size_t{64} << 10;
static_assert(kPublishBytes <= kRing / 8 && (kRing & (kRing - 1)) == 0);

// The shared state of one ring. Each cache line has one writer, except the line of flags, which is
// written only when a side sleeps or leaves.
struct Ring {
  // Total bytes written and read.
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
  alignas(kLine) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> writer_sleeps;
  // The side has closed its end.
  std::atomic<uint32_t> writer_left;
  std::atomic<uint32_t> reader_left;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The beginning of a segment; the contents of the rings follow.
struct Directory {
  std::array<char, 32> nonce;
  // By channel: one of the sides has shut it down.
  struct alignas(kLine) Broken {
    std::atomic<uint32_t> value;
  };
  std::array<Broken, Transport::kChannels> broken;
  std::array<Ring, kRings> rings;
};
constexpr size_t kPage = 4096;
constexpr size_t kRingsBegin = (sizeof(Directory) + kPage - 1) / kPage * kPage;
constexpr size_t kSegmentBytes = kRingsBegin + kRings * kRing;

Directory& DirectoryOf(SharedSegment& segment) {
  return *std::launder(reinterpret_cast<Directory*>(segment.data()));
}
std::byte* BytesOf(SharedSegment& segment, int ring) {
  return segment.data() + kRingsBegin + ring * kRing;
}

absl::Status Exhausted(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status ClosedError(absl::string_view how) {
  return absl::UnavailableError(absl::StrCat("its end of the shared memory ", how));
}

// Clears a side's flag. Returns true if it was set: that side must be woken.
bool TakeFlag(std::atomic<uint32_t>& sleeps) {
  return sleeps.load(std::memory_order_seq_cst) != 0 &&
         sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

// The writing side of a ring.
class RingWriter {
 public:
  RingWriter(Ring& ring, std::byte* bytes) : ring_(ring), bytes_(bytes) {}

  // Errors: the counters are inconsistent.
  absl::StatusOr<size_t> Room() {
    // The cached counter suffices unless the ring looks full.
    if (written_ - read_ == kRing) Refresh();
    const uint64_t used = written_ - read_;
    if (used > kRing) return ClosedError("has inconsistent counters");
    return kRing - used;
  }
  // Reloads the reader's counter.
  void Refresh() { read_ = ring_.read.load(std::memory_order_acquire); }

  // Writes without publishing. Requires: there is room.
  void Put(std::span<const std::byte> data) {
    if (data.empty()) return;
    const size_t at = written_ & (kRing - 1);
    const size_t first = std::min(data.size(), kRing - at);
    std::memcpy(bytes_ + at, data.data(), first);
    if (first < data.size()) std::memcpy(bytes_, data.data() + first, data.size() - first);
    written_ += data.size();
  }
  // Publishes all written bytes. Returns true if the reader must be woken.
  bool Publish() {
    ring_.written.store(written_, std::memory_order_seq_cst);
    return TakeFlag(ring_.reader_sleeps);
  }

  // Announces that this side will sleep. Returns false if there is room or will never be any.
  bool RaiseFlag() {
    ring_.writer_sleeps.store(1, std::memory_order_seq_cst);
    return written_ - ring_.read.load(std::memory_order_seq_cst) == kRing &&
           ring_.reader_left.load(std::memory_order_seq_cst) == 0;
  }
  void LowerFlag() { ring_.writer_sleeps.store(0, std::memory_order_relaxed); }
  bool reader_left() const { return ring_.reader_left.load(std::memory_order_acquire) != 0; }
  // Returns true if the reader must be woken.
  bool Leave() {
    ring_.writer_left.store(1, std::memory_order_seq_cst);
    return TakeFlag(ring_.reader_sleeps);
  }

 private:
  Ring& ring_;
  std::byte* const bytes_;
  uint64_t written_ = 0;
  // Cached counter of the reader.
  uint64_t read_ = 0;
};

// The reading side of a ring.
class RingReader {
 public:
  RingReader(Ring& ring, const std::byte* bytes) : ring_(ring), bytes_(bytes) {}

  // Available bytes up to the end of the memory, at most `limit`. Errors: the writer has left and
  // no bytes remain; the counters are inconsistent.
  absl::StatusOr<std::span<const std::byte>> Peek(size_t limit) {
    if (written_ == read_) {
      // Loaded before the counter, so that everything that the writer wrote before it left is seen.
      const bool left = ring_.writer_left.load(std::memory_order_acquire) != 0;
      written_ = ring_.written.load(std::memory_order_acquire);
      if (written_ - read_ > kRing) return ClosedError("has inconsistent counters");
      if (written_ == read_ && left) return ClosedError("was closed");
    }
    const size_t at = read_ & (kRing - 1);
    const size_t available = written_ - read_;
    return std::span(bytes_ + at, std::min({limit, available, kRing - at}));
  }
  // Removes bytes. Returns true if the writer must be woken.
  bool Take(size_t bytes) {
    read_ += bytes;
    if (read_ - released_ < kPublishBytes) return false;
    released_ = read_;
    ring_.read.store(read_, std::memory_order_seq_cst);
    return TakeFlag(ring_.writer_sleeps);
  }

  // Announces that this side will sleep. Returns false if bytes are available or never will be.
  bool RaiseFlag() {
    ring_.reader_sleeps.store(1, std::memory_order_seq_cst);
    return ring_.written.load(std::memory_order_seq_cst) == read_ &&
           ring_.writer_left.load(std::memory_order_seq_cst) == 0;
  }
  void LowerFlag() { ring_.reader_sleeps.store(0, std::memory_order_relaxed); }
  // Returns true if the writer must be woken.
  bool Leave() {
    ring_.reader_left.store(1, std::memory_order_seq_cst);
    return TakeFlag(ring_.writer_sleeps);
  }

 private:
  Ring& ring_;
  const std::byte* const bytes_;
  uint64_t read_ = 0;
  // The published part of read_.
  uint64_t released_ = 0;
  // Cached counter of the writer.
  uint64_t written_ = 0;
};

class SharedMemoryLink final : public Link {
 public:
  SharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel, int side,
                   WakeupHandle handle, LinkKind kind)
      : segment_(std::move(segment)),
        peer_wakeup_(std::move(handle)),
        kind_(kind),
        broken_(DirectoryOf(*segment_).broken[channel].value),
        out_(RingAt(2 * channel + side), BytesOf(*segment_, 2 * channel + side)),
        in_(RingAt(2 * channel + 1 - side), BytesOf(*segment_, 2 * channel + 1 - side)) {}

  ~SharedMemoryLink() override {
    const bool reader = out_.Leave();
    const bool writer = in_.Leave();
    if (reader || writer) peer_wakeup_.Signal();
  }

  LinkKind kind() const override { return kind_; }

  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override {
    if (IsBroken()) return ClosedError("was shut down");
    if (out_.reader_left()) return ClosedError("was closed");
    const size_t requested = first.size() + second.size();
    CADRE_ASSIGN_OR_RETURN(size_t room, out_.Room());
    if (room < requested) {
      out_.Refresh();
      CADRE_ASSIGN_OR_RETURN(room, out_.Room());
    }
    if (room == 0) return 0;
    const size_t taken = std::min(room, requested);
    first = first.first(std::min(first.size(), taken));
    second = second.first(taken - first.size());
    out_.Put(first);
    while (true) {
      const size_t bytes = std::min(second.size(), kPublishBytes);
      out_.Put(second.first(bytes));
      if (out_.Publish()) peer_wakeup_.Signal();
      second = second.subspan(bytes);
      if (second.empty()) return taken;
    }
  }

  absl::StatusOr<size_t> Read(std::span<std::byte> into) override {
    if (IsBroken()) return ClosedError("was shut down");
    size_t done = 0;
    while (done < into.size()) {
      const auto available = in_.Peek(std::min(into.size() - done, kPublishBytes));
      if (!available.ok() && done == 0) return available.status();
      if (!available.ok() || available->empty()) break;
      std::memcpy(into.data() + done, available->data(), available->size());
      done += available->size();
      Consume(available->size());
    }
    return done;
  }

  absl::StatusOr<std::span<const std::byte>> Peek(size_t limit) override {
    if (IsBroken()) return ClosedError("was shut down");
    // In small parts, so that the writer gets room while the caller adds the next part.
    return in_.Peek(std::min(limit, kPublishBytes));
  }

  void Consume(size_t bytes) override {
    if (in_.Take(bytes)) peer_wakeup_.Signal();
  }

  bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>&) override {
    bool must_wait = !IsBroken();
    if (to_read && !in_.RaiseFlag()) must_wait = false;
    if (to_write && !out_.RaiseFlag()) must_wait = false;
    return must_wait;
  }

  void EndWait() override {
    in_.LowerFlag();
    out_.LowerFlag();
  }

  // Does not wake a sleeping peer: the control connections do.
  void Shutdown() override { broken_.store(1, std::memory_order_release); }

 private:
  Ring& RingAt(int ring) { return DirectoryOf(*segment_).rings[ring]; }
  bool IsBroken() const { return broken_.load(std::memory_order_acquire) != 0; }

  // Shared by the links of all channels and, between threads, by both sides.
  const std::shared_ptr<SharedSegment> segment_;
  const WakeupHandle peer_wakeup_;
  const LinkKind kind_;
  std::atomic<uint32_t>& broken_;
  RingWriter out_;
  RingReader in_;
};

// Requires: the memory is zeroed.
void InitializeDirectory(std::byte* data, absl::string_view nonce) {
  Directory* directory = new (data) Directory();
  CHECK_EQ(nonce.size(), directory->nonce.size());
  std::copy(nonce.begin(), nonce.end(), directory->nonce.begin());
}

absl::StatusOr<std::byte*> Map(int fd, int flags) {
  void* data = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) return Exhausted("mapping shared memory");
  return static_cast<std::byte*>(data);
}

// Whether `path`, a descriptor of another process, refers to memory created by Make.
bool IsMemory(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 && absl::StrContains(absl::string_view(target.data(), length), kMemoryName);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Make() {
  Socket memory(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.empty()) return Exhausted("creating shared memory");
  if (ftruncate(memory.fd(), kSegmentBytes) != 0) return Exhausted("sizing shared memory");
  // Sealed, so that no process can truncate the memory while it is mapped.
  if (fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted("sealing shared memory");
  }
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(memory.fd(), MAP_SHARED));
  const std::string nonce = NewIdentity();
  InitializeDirectory(data, nonce);
  std::string description = absl::StrCat(getpid(), " ", memory.fd(), " ", nonce);
  return std::shared_ptr<SharedSegment>(
      new SharedSegment(data, std::move(memory), std::move(description)));
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::MakeForThreads() {
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(-1, MAP_PRIVATE | MAP_ANONYMOUS));
  const std::string nonce = NewIdentity();
  InitializeDirectory(data, nonce);
  return std::shared_ptr<SharedSegment>(new SharedSegment(data, Socket(), ""));
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Open(absl::string_view description) {
  const std::vector<absl::string_view> parts = absl::StrSplit(description, ' ');
  int pid = 0;
  int fd = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) || !absl::SimpleAtoi(parts[1], &fd) ||
      parts[2].size() != Directory{}.nonce.size()) {
    return absl::FailedPreconditionError("not a description of shared memory");
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  if (!IsMemory(path)) return absl::NotFoundError(absl::StrCat(path, " is not shared memory"));
  const Socket memory(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (memory.empty()) return ErrnoStatus(errno, "open", path);
  // The pages of a file that can shrink may disappear while they are mapped.
  const int seals = fcntl(memory.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not sealed memory"));
  }
  struct stat status {};
  if (fstat(memory.fd(), &status) != 0 || status.st_size != off_t{kSegmentBytes}) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has the wrong size"));
  }
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(memory.fd(), MAP_SHARED));
  auto segment = std::shared_ptr<SharedSegment>(new SharedSegment(data, Socket(), ""));
  const Directory& directory = DirectoryOf(*segment);
  if (absl::string_view(directory.nonce.data(), directory.nonce.size()) != parts[2]) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not the described memory"));
  }
  return segment;
}

SharedSegment::~SharedSegment() { munmap(data_, kSegmentBytes); }

std::unique_ptr<Link> MakeSharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel,
                                           int side, WakeupHandle handle, LinkKind kind) {
  CHECK(channel >= 0 && channel < Transport::kChannels && (side == 0 || side == 1));
  return std::make_unique<SharedMemoryLink>(std::move(segment), channel, side, std::move(handle),
                                            kind);
}

}  // namespace cadre
