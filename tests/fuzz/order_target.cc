// Orders of a coordinator and requests of ranks, into an aggregator's shard host on a file system
// in memory.
//
// An input has one event on each line: `o` and a CoordinatorMessage, `s` and a ContributionHeader,
// of which all chunks follow, `p` and a PullRequest, all as text, or `r`: the process is killed and
// another one starts. Text is used because mutations of it often stay valid.
#include <glog/logging.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/counters.h"
#include "base/crc32c.h"
#include "base/protocol.h"
#include "server/order_execution.h"
#include "server/shard_host.h"
#include "tests/base/memory_file_system.h"
#include "tests/fuzz/targets.h"

namespace cadre::fuzz {
namespace {

// Larger models fill the disk.
constexpr uint64_t kDiskBytes = 256 << 10;

class NoErrors : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

class Process {
 public:
  Process() {
    CHECK(files_.MakeFolder("/data").ok());
    CHECK(files_.SyncFolder("/").ok());
    files_.SetFreeBytes(kDiskBytes);
    Start();
  }

  void Order(const v1::CoordinatorMessage& order) {
    if (IsOrder(order)) ExecuteOrder(*host_, order);
  }

  void Stage(v1::ContributionHeader header) {
    header.set_protocol(kProtocol);
    absl::StatusOr<Staging> staging = host_->Stage(header);
    if (!staging.ok()) return;
    const StageGrant& grant = staging->grant;
    const BlockFileHead& head = staging->file->head();
    for (uint32_t i = grant.next_chunk; i < grant.chunks; ++i) {
      v1::Chunk chunk;
      chunk.set_index(i);
      // Small numbers as values, and zeros as a frame.
      std::string& data = *chunk.mutable_data();
      data.assign(head.BytesOf(i), '\0');
      for (size_t at = 2; !grant.coding && at < data.size(); at += 4)
        data[at] = char(header.group());
      chunk.set_crc32c(Crc32c(data));
      if (!host_->Put(*staging, chunk).ok()) return;
    }
    host_->Finish(*staging).IgnoreError();
  }

  void Pull(v1::PullRequest request) {
    request.set_protocol(kProtocol);
    const auto pull = host_->Pull(request);
    char buffer[4096];
    while (pull.ok() && (*pull)->left() > 0) {
      if (!(*pull)->Next(buffer).ok()) return;
    }
  }

  // What the process reports is what the next one finds.
  void Restart() {
    const std::vector<v1::ShardState> before = host_->States();
    host_.reset();
    files_.EndProcess();
    Start();
    const std::vector<v1::ShardState> after = host_->States();
    CHECK_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK_EQ(before[i].SerializeAsString(), after[i].SerializeAsString());
    }
  }

 private:
  void Start() {
    auto host = ShardHost::Open(
        {.data_dir = "/data", .name = "agg-0", .counters = &counters_, .files = &files_});
    CHECK(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  MemoryFileSystem files_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
};

template <typename Message, typename Use>
void Parse(absl::string_view text, const Use& use) {
  google::protobuf::TextFormat::Parser parser;
  NoErrors no_errors;
  parser.RecordErrorsTo(&no_errors);
  Message message;
  if (!parser.ParseFromString(std::string(text), &message)) return;
  // A message that was sent has only valid texts.
  Message received;
  if (received.ParseFromString(message.SerializeAsString())) use(received);
}

}  // namespace

void Order(std::span<const uint8_t> input) {
  FLAGS_minloglevel = google::FATAL;
  Process process;
  const std::string text(input.begin(), input.end());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) continue;
    const absl::string_view rest = line.substr(1);
    switch (line[0]) {
      case 'o':
        Parse<v1::CoordinatorMessage>(rest, [&](const auto& order) { process.Order(order); });
        break;
      case 's':
        Parse<v1::ContributionHeader>(rest, [&](const auto& header) { process.Stage(header); });
        break;
      case 'p':
        Parse<v1::PullRequest>(rest, [&](const auto& request) { process.Pull(request); });
        break;
      case 'r':
        process.Restart();
    }
  }
  process.Restart();
}

}  // namespace cadre::fuzz
