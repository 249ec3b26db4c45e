#include "tests/fuzz/targets.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/rooted_files.h"
#include "base/rpc/identity.h"
#include "comm/transport/tcp_listener.h"
#include "kernels/codec/codec.h"
#include "model/formats/idx.h"
#include "model/formats/safetensors.h"
#include "model/graph.h"
#include "model/validate.h"
#include "worker/data/cifar10.h"
#include "worker/data/jpeg.h"
#include "worker/data/tar.h"

namespace cadre::fuzz {
namespace {

std::string TextOf(std::span<const uint8_t> input) { return {input.begin(), input.end()}; }

// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const uint8_t> data) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    CHECK(fd_ >= 0 && write(fd_, data.data(), data.size()) == std::ssize(data));
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(fd_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// A batch file of CIFAR-10 is read completely or not at all.
void Cifar10(std::span<const uint8_t> input) {
  CifarImages images;
  const bool ok = ParseCifar10("input", std::as_bytes(input), images).ok();
  const size_t records = ok ? input.size() / kCifarRecordBytes : 0;
  CHECK_EQ(images.labels.size(), records);
  CHECK_EQ(images.pixels.size(), records * kCifarPixelBytes);
  for (const int32_t label : images.labels) CHECK(label >= 0 && label < kCifarClasses);
}

// A listener delivers a header that has the right tag only if its fields are those of a connection
// that this rank may accept. Otherwise it refuses the header with a reason. The input is the part
// of the header that follows the generation.
void HeaderTarget(std::span<const uint8_t> input) {
  static const GroupIdentity group{.protocol = 1, .run = "run", .group = 2, .generation = 3};
  constexpr uint32_t kRank = 1, kRanks = 4;
  static const Socket wake = std::move(*MakeWake());
  static TcpListener& listener = *[] {
    FLAGS_minloglevel = google::WARNING;  // one line for each refusal otherwise
    auto made = TcpListener::Listen({});
    CHECK(made.ok() && (*made)->Expect(group, kRank, kRanks, &wake).ok()) << made.status();
    return std::move(*made).release();
  }();
  Header header;
  constexpr size_t kFirst = offsetof(Header, host);
  std::memcpy(reinterpret_cast<uint8_t*>(&header) + kFirst, input.data(),
              std::min(input.size(), sizeof header - kFirst));
  header.protocol = group.protocol;
  header.run = TextDigest(group.run);
  header.generation = group.generation;
  header.group = group.group;
  const auto addresses = Resolve(listener.address(), false);
  CHECK(addresses.ok() && !addresses->empty()) << addresses.status();
  const auto socket = StartConnect(addresses->front());
  CHECK(socket.ok()) << socket.status();
  // Reset instead of closed, so that ports are free again at once.
  const linger reset{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  pollfd writable{.fd = socket->fd(), .events = POLLOUT};
  poll(&writable, 1, -1);
  std::string received;
  pollfd readable{.fd = socket->fd(), .events = POLLIN};
  while (!ReadUntil(*socket, sizeof(Greeting), &received).value()) poll(&readable, 1, -1);
  Sign(group.key, header, FromBytes<Greeting>(received).challenge);
  received.clear();
  CHECK_EQ(SendWhole(*socket, BytesOf(header)), absl::OkStatus());
  while (true) {
    pollfd entries[] = {{.fd = socket->fd(), .events = POLLIN},
                        {.fd = wake.fd(), .events = POLLIN}};
    poll(entries, 2, -1);
    ClearWake(wake);
    for (const TcpListener::Arrival& arrival : listener.TakeArrivals(group)) {
      const Header& taken = arrival.header;
      CHECK(taken.to == kRank && taken.ranks == kRanks);
      CHECK(taken.from > kRank && taken.from < kRanks);
      CHECK_LE(taken.memory.view().size(), taken.memory.bytes.size());
      return;
    }
    if (entries[0].revents == 0) continue;
    const auto complete = ReadUntil(*socket, sizeof(Answer), &received);
    CHECK(complete.ok()) << complete.status();
    if (!*complete) continue;
    const auto answer = FromBytes<Answer>(received);
    CHECK(answer.code == Answer::Code::kWrongRank && !answer.reason.empty());
    return;
  }
}

// An accepted IDX file has as many elements as its extents state.
void Idx(std::span<const uint8_t> input) {
  const MemoryFile file(input);
  const auto array = ReadIdx(file.path());
  if (!array.ok()) return;
  int64_t elements = 1;
  for (const int64_t extent : array->dims) elements *= extent;
  CHECK_EQ(elements, std::ssize(array->data));
  // Deflate shrinks data by a factor of at most 1032; the header of a plain file is not data.
  const bool compressed = input.size() > 1 && input[0] == 0x1f && input[1] == 0x8b;
  CHECK_LE(array->data.size(), (compressed ? 1032 : 1) * input.size());
}

// A JPEG image, decoded as grey and as color and at every scale, has the announced size.
void Jpeg(std::span<const uint8_t> input) {
  JpegReader reader;
  JpegImage image;
  for (const int channels : {1, 3}) {
    for (const int eighths : {1, 2, 4, 8}) {
      const absl::StatusOr<ImageSize> full = reader.Open(std::as_bytes(input));
      if (!full.ok()) return;
      CHECK_LE(full->height * full->width, kMaxJpegPixels);
      if (!reader.Decode(channels, eighths, image).ok()) continue;
      CHECK_EQ(image.size.height, (full->height * eighths + 7) / 8);
      CHECK_EQ(image.size.width, (full->width * eighths + 7) / 8);
      CHECK_EQ(std::ssize(image.pixels), image.size.height * image.size.width * channels);
      // A part of an image that can be decoded can be decoded.
      CHECK(reader.Open(std::as_bytes(input)).ok());
      const double height = full->height;
      const double width = full->width;
      const double last = input.back() / 256.0;
      const ImageRect part = {.top = height * last,
                              .left = width * last / 2,
                              .height = height * (1 - last) / 2,
                              .width = width * (1 - last)};
      JpegImage some;
      CHECK_EQ(reader.Decode(channels, eighths, some, &part), absl::OkStatus())
          << part.top << " " << part.left << " " << part.height << " " << part.width << " of "
          << height << " " << width << " " << channels << " " << eighths;
      CHECK(some.size == image.size);
    }
  }
}

// The tensors of an accepted safetensors file make up exactly its data and can be read, in whole
// and in part.
void Safetensors(std::span<const uint8_t> input) {
  // Reading larger tensors would only take time.
  constexpr int64_t kMaxElements = int64_t{1} << 16;
  const MemoryFile memory(input);
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(memory.path());
  if (!file.ok()) return;
  int64_t next = 0;
  for (const StoredTensor& tensor : file->tensors()) {
    CHECK(tensor.begin == next && tensor.end >= tensor.begin);
    next = tensor.end;
    CHECK(file->Find(tensor.name) == &tensor);
    const int64_t elements = tensor.shape.elements();
    if (ElementBytes(tensor.type) != 0) {
      CHECK_EQ(elements * ElementBytes(tensor.type), tensor.end - tensor.begin);
    }
    if (elements > kMaxElements) continue;
    std::vector<float> values(elements);
    const bool real = file->Read(tensor, 0, values).ok();
    if (elements == 0) continue;
    CHECK_EQ(file->Read(tensor, elements - 1, std::span(values).last(1)).ok(), real);
  }
}

// An accepted spec is within the limits, and describes a graph.
void Spec(std::span<const uint8_t> input) {
  v1::RunSpec spec;
  if (!spec.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const std::vector<Problem> problems = FindProblems(spec);
  for (const Problem& problem : problems) CHECK(!problem.field.empty());
  CHECK_EQ(ValidateRunSpec(spec).ok(), problems.empty());
  if (!problems.empty()) return;
  CHECK_LE(spec.ByteSizeLong(), spec.model().has_opaque() ? kMaxOpaqueSpecBytes : kMaxSpecBytes);
  CHECK(Graph::FromModel(spec.model()).ok());
}

// A folder "root" with links out of it, and a file beside it.
class LinkedFolder {
 public:
  LinkedFolder() {
    char path[] = "/tmp/cadre-fuzz-XXXXXX";
    CHECK(mkdtemp(path) != nullptr);
    path_ = path;
    std::filesystem::create_directories(path_ + "/root/a/b");
    for (const char* file : {"/outside", "/root/a/file"}) {
      CHECK(WriteFileAtomically(path_ + file, "x").ok());
    }
    for (const auto& [link, target] : {std::pair{"up", "../.."},
                                       {"etc", "/etc"},
                                       {"proc", "/proc/self/root"},
                                       {"a/inside", "../a/b"},
                                       {"a/loop", "loop"}}) {
      std::filesystem::create_symlink(target, path_ + "/root/" + link);
    }
  }
  LinkedFolder(const LinkedFolder&) = delete;
  LinkedFolder& operator=(const LinkedFolder&) = delete;
  ~LinkedFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A path of a spec, with "ROOT" in place of the folder that may be read, is beneath that folder if
// it can be opened or resolved.
void Path(std::span<const uint8_t> input) {
  static const LinkedFolder folder;
  static const std::string root = folder.path() + "/root";
  static const RootedFiles files = RootedFiles::Open("--data-root", {root}).value();
  const std::string path = absl::StrReplaceAll(TextOf(input), {{"ROOT", root}});
  const auto is_inside = [&](const std::string& resolved) {
    return resolved == root || absl::StartsWith(resolved, root + "/");
  };
  if (const auto resolved = files.Resolve(path); resolved.ok()) CHECK(is_inside(*resolved));
  const auto file = OpenRegularFile(path, files);
  if (!file.ok()) return;
  CHECK(is_inside(std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", file->fd))));
  close(file->fd);
}

// The members of a tar archive must follow each other, and each must be found again from its own
// offset.
void ScanTar(const std::string& archive) {
  const MemoryBytes source("input", std::as_bytes(std::span(archive)));
  TarScanner scanner(source);
  int64_t end = 0;
  while (true) {
    const absl::StatusOr<std::optional<TarMember>> member = scanner.Next();
    if (!member.ok() || !member->has_value()) return;
    const TarMember& found = **member;
    CHECK_GE(found.header, end);
    CHECK_GT(found.begin, found.header);
    CHECK_GE(found.size, 0);
    end = found.begin + found.size;
    CHECK_LE(end, source.size());
    std::vector<std::byte> contents(found.size);
    CHECK(source.ReadAt(found.begin, contents).ok());
    const auto again = TarScanner(source, found.header).Next();
    CHECK(again.ok() && again->has_value());
    CHECK_EQ((*again)->name, found.name);
    CHECK_EQ((*again)->begin, found.begin);
  }
}

// Corrects the checksums of all blocks that could be headers; otherwise the reader would reject
// nearly all mutations because of their checksums.
void Tar(std::span<const uint8_t> input) {
  constexpr size_t kBlock = kTarBlockBytes;
  constexpr size_t kChecksum = 148;
  std::string archive = TextOf(input);
  ScanTar(archive);
  for (size_t begin = 0; begin + kBlock <= archive.size(); begin += kBlock) {
    if (archive.compare(begin + 257, 5, "ustar") != 0) continue;
    std::fill_n(archive.begin() + begin + kChecksum, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(archive[begin + i]);
    archive.replace(begin + kChecksum, 6, absl::StrFormat("%06o", sum));
  }
  ScanTar(archive);
}

// What a block is decoded as is within the bounds that codec.h states.
void CheckErrors(const Codec& codec, std::span<const float> block, std::span<const float> decoded) {
  constexpr double kTiny = 0x1p-126;
  double max = 0;
  for (const float value : block) max = std::max(max, std::abs(double{value}));
  double squares = 0;
  double errors = 0;
  uint32_t kept = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const double x = block[i];
    const double d = decoded[i];
    const double error = std::abs(d - x);
    squares += x * x;
    errors += error * error;
    kept += d != 0 ? 1 : 0;
    if (codec.kind != CodecKind::kStat2) CHECK_GE(d * x, 0);
    if (codec.kind == CodecKind::kFp32) CHECK_EQ(error, 0);
    if (codec.kind == CodecKind::kBf16) CHECK_LE(error, std::abs(x) / 256 + kTiny);
    if (codec.kind == CodecKind::kInt8) CHECK_LE(error, max / 127 + kTiny);
    if (codec.kind == CodecKind::kE3m0) {
      CHECK(error <= std::abs(x) / 3 * (1 + 1e-9) + kTiny ||
            (d == 0 && std::abs(x) < max / 64 + kTiny) || std::abs(d) == 0x1p127)
          << x << " is decoded as " << d;
    }
  }
  if (codec.kind == CodecKind::kTopK) CHECK_LE(kept, codec.keep);
  if (codec.kind == CodecKind::kTopK || codec.kind == CodecKind::kStat2) {
    CHECK_LE(errors, (1 + 0x1p-15) * squares +
                         kTiny * (std::sqrt(squares) + kTiny) * static_cast<double>(block.size()));
  }
}

// The first bytes choose a codec and the size of a run. The others are decoded, and encoded as
// floats.
void CodecTarget(std::span<const uint8_t> input) {
  if (input.size() < 4) return;
  Codec codec{static_cast<CodecKind>(input[0] % 8), input[1] * 17U};
  const size_t size = 1 + input[2] + input[3] % 32 * size_t{256};
  if (codec.kind != CodecKind::kTopK) codec.keep = 0;
  if (!CheckCodec(codec).ok()) return;
  const std::string rest = TextOf(input.subspan(4));
  absl::string_view coded = rest;
  std::vector<float> values(size);
  std::string again;
  if (Decode(codec, &coded, values).ok()) {
    for (const float value : values) CHECK(std::isfinite(value));
    CHECK(Encode(codec, values, &again).ok());
    // The other two accept bytes that they do not write.
    if (codec.kind != CodecKind::kStat2 && codec.kind != CodecKind::kTopK) {
      CHECK_EQ(again, rest.substr(0, rest.size() - coded.size()));
    }
  }
  std::vector<float> given(rest.size() / sizeof(float));
  std::memcpy(given.data(), rest.data(), given.size() * sizeof(float));
  again = "before";
  if (!Encode(codec, given, &again).ok()) {
    CHECK_EQ(again, "before");
    CHECK(
        !std::all_of(given.begin(), given.end(), [](float value) { return std::isfinite(value); }));
    // Most mutations contain a value that is not finite; the others are encoded as well.
    for (float& value : given) value = std::isfinite(value) ? value : 0;
    CHECK(Encode(codec, given, &again).ok());
  }
  absl::string_view whole = again;
  whole.remove_prefix(6);
  CHECK_LE(std::ssize(whole), MaxCodedBytes(codec, std::ssize(given)));
  std::vector<float> decoded(given.size());
  const absl::Status status = Decode(codec, &whole, decoded);
  CHECK(status.ok() && whole.empty()) << status;
  const size_t block = BlockOf(codec.kind);
  for (size_t at = 0; at < given.size(); at += block) {
    const size_t length = std::min(block, given.size() - at);
    CheckErrors(codec, std::span(given).subspan(at, length),
                std::span(decoded).subspan(at, length));
  }
}

void SpiffeId(std::span<const uint8_t> input) {
  const std::string uri = TextOf(input);
  const absl::StatusOr<Identity> identity = ParseSpiffeId(uri);
  if (!identity.ok()) return;
  CHECK_EQ(uri, absl::StrCat("spiffe://", identity->trust_domain, "/cadre/",
                             RoleName(identity->role), "/", identity->name));
}

// Broken on purpose, for the test of the driver; the beginning of the input selects how.
void Fragile(std::span<const uint8_t> bytes) {
  const std::string input = TextOf(bytes);
  if (input.starts_with("abort")) std::abort();
  if (input.starts_with("exit")) std::exit(3);
  while (input.starts_with("hang")) usleep(1000);
  // Only reachable by mutation of "sound".
  if (input.size() == 5 && input.starts_with("soun") && input[4] != 'd') std::abort();
}

}  // namespace

const std::map<std::string, Target>& Targets() {
  static const std::map<std::string, Target> targets = {{"answer", AnswerTarget},
                                                        {"assignment", Assignment},
                                                        {"cifar10", Cifar10},
                                                        {"codec", CodecTarget},
                                                        {"fragile", Fragile},
                                                        {"header", HeaderTarget},
                                                        {"idx", Idx},
                                                        {"jpeg", Jpeg},
                                                        {"member", Member},
                                                        {"onnx", Onnx},
                                                        {"order", Order},
                                                        {"path", Path},
                                                        {"safetensors", Safetensors},
                                                        {"spec", Spec},
                                                        {"spiffe", SpiffeId},
                                                        {"tar", Tar}};
  return targets;
}

}  // namespace cadre::fuzz
