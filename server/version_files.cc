#include "server/version_files.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"
#include "model/change_sums.h"
#include "server/file_format.h"

namespace cadre {
namespace {

// Meta of a version's file; the serialized Apply that made the version follows. Only the fields
// here change while the file is written.
struct VersionMeta {
  uint32_t version = 0;
  uint32_t format = 0;
  uint64_t digest = 0;
  int64_t begin = 0;
  int64_t end = 0;
  DiscrepancyTerms discrepancy;
};
static_assert(sizeof(VersionMeta) == 48);
// The newest formats that are read, and those that are written. 0 stands for the first one, since
// files of earlier builds have zeros there.
constexpr uint32_t kVersionFormat = 0;
constexpr uint32_t kStatesFormat = 0;

std::string EncodeMeta(const VersionMeta& meta, const v1::Apply& order) {
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&meta), sizeof(meta)),
                      order.SerializeAsString());
}

absl::StatusOr<VersionMeta> MetaOf(const BlockFile& file, uint32_t version, v1::Apply* order) {
  VersionMeta meta;
  const absl::string_view bytes = file.head().meta;
  const bool fits = bytes.size() >= sizeof(meta);
  if (fits) std::memcpy(&meta, bytes.data(), sizeof(meta));
  CADRE_RETURN_IF_ERROR(CheckFormat(file.path(), meta.format, kVersionFormat));
  const absl::string_view rest = bytes.substr(std::min(bytes.size(), sizeof(meta)));
  if (!fits || !order->ParseFromArray(rest.data(), std::ssize(rest)) || meta.version != version ||
      meta.begin > meta.end || file.head().data_bytes != (meta.end - meta.begin) * sizeof(float)) {
    return absl::DataLossError(absl::StrCat(file.path(), ": does not contain version ", version));
  }
  return meta;
}

// Meta of a file of outer states: this, then the sums.
struct OuterMeta {
  uint32_t version = 0;
  uint32_t format = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t states = 0;

  bool operator==(const OuterMeta&) const = default;
};
static_assert(sizeof(OuterMeta) == 32);

OuterMeta MakeOuterMeta(uint32_t version, Interval span, int states) {
  return {version, kStatesFormat, span.begin, span.end, static_cast<uint64_t>(states)};
}

// The beginning of the meta; zeros if it is too short.
absl::StatusOr<OuterMeta> OuterMetaOf(const BlockFile& file) {
  OuterMeta meta;
  const std::string& bytes = file.head().meta;
  if (bytes.size() >= sizeof(meta)) std::memcpy(&meta, bytes.data(), sizeof(meta));
  CADRE_RETURN_IF_ERROR(CheckFormat(file.path(), meta.format, kStatesFormat));
  return meta;
}

// The size is constant, although fields of type double that are 0 are not serialized.
std::string EncodeMeta(const OuterMeta& meta, const VersionStats& stats) {
  const v1::OuterSums sums = stats.outer.value_or(v1::OuterSums());
  const v1::ResidualSums residual = stats.residual.value_or(v1::ResidualSums());
  const double values[] = {sums.change_squared(), sums.momentum_squared(), sums.product(),
                           residual.change_squared(), residual.residual_squared()};
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&meta), sizeof(meta)),
                      absl::string_view(reinterpret_cast<const char*>(values), sizeof(values)));
}

}  // namespace

bool IsLoss(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

bool IsTransient(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

bool HasStates(const v1::Apply& order) { return order.has_outer() || order.has_down(); }

absl::string_view AsText(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

absl::StatusOr<VersionHead> ReadVersionHead(FileSystem& files, const std::string& path,
                                            uint32_t version) {
  VersionHead head;
  CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(files, path, Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const VersionMeta meta, MetaOf(*file, version, &head.order));
  head.digest = meta.digest;
  head.span = {meta.begin, meta.end};
  return head;
}

absl::StatusOr<VersionStats> VersionFiles::Write(
    const std::string& run, const v1::Apply& order, Interval span, const StretchRule& rule,
    int threads, const Compute& compute, const StretchWork& append,
    const std::function<absl::StatusOr<VersionStats>()>& finish) {
  const std::string path = folder_.Version(run, order.round());
  const std::string temporary = absl::StrCat(path, ".new");
  VersionMeta meta{
      .version = order.round(), .format = kVersionFormat, .begin = span.begin, .end = span.end};
  v1::Apply stored = order;
  if (order.attempt() > 0) *stored.mutable_changes() = UnknownChanges(order.participants_size());
  absl::Cleanup remove = [&] { folder_.RemoveFile(temporary); };
  const uint64_t bytes = span.size() * sizeof(float);
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Create(folder_.files, temporary,
                        {EncodeMeta(meta, stored), DataFolder::kBlockBytes, bytes}));
  BlockWriter writer(std::move(file), bytes);
  std::atomic<uint64_t> digest = 0;
  const auto write = [&](int thread, Interval stretch) -> absl::Status {
    CADRE_ASSIGN_OR_RETURN(const std::span<const float> values, compute(thread, stretch));
    digest += Digest(values, stretch.begin);
    return writer.Write((stretch.begin - span.begin) * sizeof(float), AsText(values));
  };
  CADRE_RETURN_IF_ERROR(ForEachStretch(rule, span, threads, write, append));
  if (order.has_digest() && digest != order.digest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the values of version ", order.round(), " of ", run, " have digest ",
                     DigestHex(digest), ", but ", DigestHex(order.digest()), " was committed"));
  }
  CADRE_ASSIGN_OR_RETURN(VersionStats stats, finish());
  stats.digest = meta.digest = digest;
  meta.discrepancy = stats.discrepancy;
  if (order.attempt() > 0) *stored.mutable_changes() = stats.changes;
  CADRE_RETURN_IF_ERROR(writer.Finish(EncodeMeta(meta, stored), bytes));
  CADRE_RETURN_IF_ERROR(folder_.files.Rename(temporary, path));
  std::move(remove).Cancel();
  CADRE_RETURN_IF_ERROR(folder_.files.SyncFolder(folder_.Run(run)));
  return stats;
}

absl::StatusOr<std::unique_ptr<BlockWriter>> VersionFiles::CreateStates(const std::string& run,
                                                                        uint32_t version,
                                                                        Interval span, int states) {
  const OuterMeta meta = MakeOuterMeta(version, span, states);
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Create(folder_.files, absl::StrCat(folder_.Outer(run, version), ".new"),
                        {EncodeMeta(meta, VersionStats()), DataFolder::kBlockBytes, 0}));
  return std::make_unique<BlockWriter>(std::move(file),
                                       states * span.size() * int64_t{sizeof(float)});
}

absl::Status VersionFiles::FinishStates(const std::string& run, uint32_t version, Interval span,
                                        int states, const VersionStats& stats,
                                        BlockWriter& writer) {
  const OuterMeta meta = MakeOuterMeta(version, span, states);
  CADRE_RETURN_IF_ERROR(
      writer.Finish(EncodeMeta(meta, stats), states * span.size() * int64_t{sizeof(float)}));
  return folder_.files.Rename(writer.path(), folder_.Outer(run, version));
}

absl::StatusOr<std::unique_ptr<BlockScan>> VersionFiles::ScanStates(const std::string& run,
                                                                    uint32_t version, Interval span,
                                                                    int states) const {
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Open(folder_.files, folder_.Outer(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const OuterMeta meta, OuterMetaOf(*file));
  if (meta != MakeOuterMeta(version, span, states)) {
    return absl::DataLossError(
        absl::StrCat(file->path(), ": does not contain the outer states of version ", version));
  }
  return std::make_unique<BlockScan>(std::move(file));
}

absl::StatusOr<StoredStates> VersionFiles::OpenStates(const std::string& run,
                                                      uint32_t version) const {
  StoredStates stored;
  v1::Apply order;
  CADRE_RETURN_IF_ERROR(OpenFile(run, version, &order, &stored.span).status());
  if (!HasStates(order)) return stored;
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Open(folder_.files, folder_.Outer(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const OuterMeta meta, OuterMetaOf(*file));
  if (meta.version != version || Interval{meta.begin, meta.end} != stored.span ||
      file->head().data_bytes != meta.states * stored.span.size() * sizeof(float)) {
    return absl::DataLossError(
        absl::StrCat(file->path(), ": does not contain the states of version ", version));
  }
  stored.states = static_cast<uint32_t>(meta.states);
  stored.reader = std::make_unique<VersionReader>(
      std::move(file), Interval{0, int64_t{stored.states} * stored.span.size()});
  return stored;
}

// The states of a stretch follow one another.
std::vector<Interval> StoredStates::ElementsOf(uint32_t state, const StretchRule& rule,
                                               const std::vector<Interval>& positions) const {
  std::vector<Interval> stretches;
  for (int64_t begin = span.begin; begin < span.end; begin = stretches.back().end) {
    stretches.push_back({begin, StretchEnd(rule, span, begin)});
  }
  std::vector<Interval> elements;
  for (const Interval& each : positions) {
    auto stretch =
        std::partition_point(stretches.begin(), stretches.end(),
                             [&](const Interval& before) { return before.end <= each.begin; });
    for (; stretch != stretches.end() && stretch->begin < each.end; ++stretch) {
      const Interval part = Intersect(*stretch, each);
      const int64_t first = (stretch->begin - span.begin) * states + state * stretch->size() +
                            (part.begin - stretch->begin);
      elements.push_back({first, first + part.size()});
    }
  }
  return elements;
}

absl::Status VersionFiles::CheckStates(const std::string& run, const v1::Apply& order, bool verify,
                                       VersionStats* stats,
                                       const BlockFile::OnRead& on_read) const {
  const std::string path = folder_.Outer(run, order.round());
  CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(folder_.files, path, Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const OuterMeta meta, OuterMetaOf(*file));
  const std::string& bytes = file->head().meta;
  double sums[5];
  const bool fits = bytes.size() == sizeof(meta) + sizeof(sums);
  if (fits) std::memcpy(sums, bytes.data() + sizeof(meta), sizeof(sums));
  if (!fits || meta.version != order.round()) {
    return absl::DataLossError(
        absl::StrCat(path, ": does not contain the outer states of version ", order.round()));
  }
  if (verify) CADRE_RETURN_IF_ERROR(file->Verify(on_read));
  if (order.has_outer()) {
    stats->outer.emplace();
    stats->outer->set_change_squared(sums[0]);
    stats->outer->set_momentum_squared(sums[1]);
    stats->outer->set_product(sums[2]);
  }
  if (order.has_down()) {
    stats->residual.emplace();
    stats->residual->set_change_squared(sums[3]);
    stats->residual->set_residual_squared(sums[4]);
  }
  return absl::OkStatus();
}

// What is read is checked block by block.
absl::StatusOr<VersionStats> VersionFiles::Copy(const ApplyPlan& plan) {
  const uint32_t from = plan.order.restores();
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<VersionReader> reader, Open(plan.run, from));
  CADRE_ASSIGN_OR_RETURN(const StoredStates states, OpenStates(plan.run, from));
  if (reader->span() != plan.span) {
    return absl::DataLossError(
        absl::StrCat("the file of version ", from, " of ", plan.run, " covers other positions"));
  }
  const int number = static_cast<int>(states.states);
  std::unique_ptr<BlockWriter> copy;
  const absl::Cleanup remove = [&] {
    if (copy != nullptr) folder_.RemoveFile(copy->path());
  };
  if (states.reader != nullptr) {
    CADRE_ASSIGN_OR_RETURN(copy, CreateStates(plan.run, plan.round, plan.span, number));
  }
  std::vector<float> values;
  const auto compute = [&](int, Interval stretch) -> absl::StatusOr<std::span<const float>> {
    values.resize(stretch.size());
    const auto bytes = [&] {
      return std::span(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));
    };
    // The states need not be read by position: their file has as many elements for each.
    for (int i = 0; i < number; ++i) {
      const int64_t first = (stretch.begin - plan.span.begin) * number + i * stretch.size();
      CADRE_RETURN_IF_ERROR(states.reader->Read(first, bytes()));
      CADRE_RETURN_IF_ERROR(copy->Write(first * sizeof(float), AsText(values)));
    }
    CADRE_RETURN_IF_ERROR(reader->Read(stretch.begin, bytes()));
    return values;
  };
  const auto finish = [&]() -> absl::StatusOr<VersionStats> {
    if (copy != nullptr) {
      CADRE_RETURN_IF_ERROR(
          FinishStates(plan.run, plan.round, plan.span, number, plan.restored, *copy));
    }
    return plan.restored;
  };
  return Write(
      plan.run, plan.order, plan.span, {plan.units.get(), plan.fragments}, /*threads=*/1, compute,
      [](int, Interval) { return absl::OkStatus(); }, finish);
}

absl::StatusOr<StoredVersion> VersionFiles::Check(const std::string& run, uint32_t version,
                                                  bool verify,
                                                  const BlockFile::OnRead& on_read) const {
  StoredVersion found{.version = version};
  CADRE_ASSIGN_OR_RETURN(
      const auto file,
      BlockFile::Open(folder_.files, folder_.Version(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const VersionMeta meta, MetaOf(*file, version, &found.order));
  if (verify) CADRE_RETURN_IF_ERROR(file->Verify(on_read));
  found.stats = {
      .digest = meta.digest, .discrepancy = meta.discrepancy, .changes = found.order.changes()};
  found.order.clear_changes();
  if (HasStates(found.order)) {
    CADRE_RETURN_IF_ERROR(CheckStates(run, found.order, verify, &found.stats, on_read));
  }
  return found;
}

absl::StatusOr<std::unique_ptr<BlockFile>> VersionFiles::OpenFile(const std::string& run,
                                                                  uint32_t version,
                                                                  v1::Apply* order,
                                                                  Interval* span) const {
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Open(folder_.files, folder_.Version(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const VersionMeta meta, MetaOf(*file, version, order));
  *span = {meta.begin, meta.end};
  return file;
}

absl::StatusOr<std::unique_ptr<VersionReader>> VersionFiles::Open(const std::string& run,
                                                                  uint32_t version,
                                                                  v1::Apply* order) const {
  v1::Apply ignored;
  Interval span;
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         OpenFile(run, version, order != nullptr ? order : &ignored, &span));
  return std::make_unique<VersionReader>(std::move(file), span);
}

void VersionFiles::Remove(const std::string& run, uint32_t version) {
  folder_.RemoveFile(folder_.Version(run, version));
  folder_.RemoveFile(folder_.Outer(run, version));
}

void VersionFiles::Quarantine(const std::string& path, absl::string_view why) {
  const std::string damaged =
      std::filesystem::path(path).replace_filename("version.damaged").string();
  LOG(ERROR) << path << ": renamed to " << damaged << ": " << why;
  if (const absl::Status renamed = folder_.files.Rename(path, damaged); !renamed.ok()) {
    LOG(ERROR) << renamed;
  }
}

}  // namespace cadre
