// Averaging without a root rank: every rank exchanges exactly what it owns.
//
// Each element of the model is owned by one rank of a group and by one aggregator shard. A rank
// intersects its intervals with those of each shard and exchanges the overlaps. Neither side needs
// the other's partition, so groups with different meshes average with one another through any
// number of shards, and a rank sends n / p elements in each direction for a model of n elements and
// p ranks. No rank holds the whole model for this.
//
// Each shard has its own task. The disks and the network bound the speed; without overlap no step
// is computed meanwhile.
//
// Failures. RoundsClient retries while it makes progress; Stage and Pull are idempotent. The first
// shard for which a call fails ends the calls to the others, which would be of no use. If any
// shard refuses the contribution because the round is closed (server/client/refusal.h), that error
// is returned even if other shards failed otherwise: the coordinator's decision then determines how
// the group continues.
//
// Restoring shards. The threads that stage values again copy them under mutex_, while `held` has
// them, so that nothing changes them, and stage the copy without the mutex: the rank may be pulling
// from the same shard, which refuses pulls until it is restored.
#include "member/shard_exchange.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/secret_key.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/coding.h"
#include "model/frame.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"

namespace cadre {

ShardExchange::ShardExchange(Runtime& runtime, const v1::Assignment& assignment,
                             const ParameterIndex& index, std::span<const Owned> owned,
                             GroupControl& control, Cancellation& cancellation,
                             TrainerProgress& progress, const Options& options)
    : rank_slot_(assignment.place()),
      lineage_(assignment.lineage()),
      form_{
          .index = index,
          .units = options.units,
          .averaging = assignment.spec().averaging(),
          .has_coder = options.coder != nullptr,
          .threads = std::max(1, runtime.coding_threads() / std::max(1, assignment.shards_size()))},
      runtime_(runtime),
      control_(control),
      progress_(progress),
      coder_(options.coder) {
  CHECK(coder_ == nullptr || CodesOnDevice(assignment.spec().averaging()));
  const uint32_t shards = assignment.shards_size();
  // The group could not have connected with a key of another size.
  const SecretKey key = ParseSecretKey(assignment.key()).value_or(SecretKey{});
  for (uint32_t id = 0; id < shards; ++id) {
    const Interval positions = form_.units != nullptr ? form_.units->PartOf(id, shards)
                                                      : ShardSpan(index.size(), id, shards);
    Shard& shard = shards_.emplace_back(id, form_, PartsIn(positions, owned));
    // Different seeds, so that ranks that failed together do not retry at the same times.
    const uint64_t seed = (uint64_t{rank_slot_.group()} << 32) + rank_slot_.rank() * 64 + id;
    shard.client = runtime.MakeShardClient({
        .location = [&control, id] { return control.LocationOf(id); },
        .away = [&control, id] { return control.ShardIsAway(id); },
        .transfer = {.seed = seed, .silence = options.silence},
        .on_progress = [&progress] { progress.Advance(); },
        .key = key,
    });
  }
  on_cancel_ = cancellation.OnCancel([this](const absl::Status&) {
    for (Shard& shard : shards_) shard.client->Cancel();
  });
  control_.HandleRestage([this](const v1::Restage& restage) { OnRestage(restage); });
}

ShardExchange::~ShardExchange() { Stop(); }

void ShardExchange::Stop() {
  control_.HandleRestage(nullptr);
  for (Shard& shard : shards_) shard.client->Cancel();
  running_.reset();
  std::vector<std::unique_ptr<BackgroundTask>> restages;
  {
    absl::MutexLock lock(&restages_mutex_);
    restages.swap(restages_);
  }
  restages.clear();
  for (Shard& shard : shards_) {
    if (!shard.values.undecided()) shard.values.KeepOnlyCarried();
  }
}

int64_t ShardExchange::ExpectedBytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.values.ExpectedBytes();
  return bytes;
}

int64_t ShardExchange::AllocatedBytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.values.AllocatedBytes();
  return bytes;
}

int64_t ShardExchange::elements() const {
  int64_t elements = 0;
  for (const Shard& shard : shards_) elements += shard.values.size();
  return elements;
}

template <typename Message>
void ShardExchange::FillRanges(const std::vector<Owned>& parts, Message& message) const {
  for (const Owned& part : parts) {
    for (const v1::Range& range : form_.index.RangesOf(part.positions.begin, part.positions.end)) {
      *message.add_ranges() = range;
    }
  }
}

absl::Status ShardExchange::ForEachShard(
    const std::function<absl::Status(Shard&, std::stop_token)>& work, Traffic* traffic) {
  std::vector<absl::Status> results(shards_.size());
  std::stop_source failed;
  std::atomic<size_t> first = shards_.size();
  std::vector<std::unique_ptr<BackgroundTask>> tasks;
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].traffic = Traffic();
    tasks.push_back(runtime_.Start([&, i] {
      results[i] = work(shards_[i], failed.get_token());
      size_t none = shards_.size();
      if (!results[i].ok() && first.compare_exchange_strong(none, i)) failed.request_stop();
    }));
  }
  tasks.clear();
  for (const Shard& shard : shards_) *traffic += shard.traffic;
  for (const absl::Status& result : results) {
    if (RefusalOf(result) == v1::REFUSAL_CLOSED_ROUND) return result;
  }
  if (first == shards_.size()) return absl::OkStatus();
  const absl::Status& error = results[first];
  return absl::Status(
      error.code(), absl::StrCat(error.message(), " (shard ", shards_[first].id, " on aggregator ",
                                 control_.LocationOf(shards_[first].id).aggregator, ")"));
}

v1::ContributionHeader ShardExchange::HeaderOf(const std::vector<Owned>& parts, uint32_t round,
                                               uint64_t samples) const {
  v1::ContributionHeader header;
  header.set_run(rank_slot_.run());
  header.set_lineage(lineage_);
  header.set_group(rank_slot_.group());
  header.set_generation(rank_slot_.generation());
  header.set_rank(rank_slot_.rank());
  header.set_round(round);
  header.set_base_version(round - 1);
  header.set_samples(samples);
  FillRanges(parts, header);
  return header;
}

void ShardExchange::BeginStage(uint32_t round, uint64_t samples, uint32_t fragment) {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&mutex_);
    shard.held.BeginStage();
    shard.values.BeginContribution(round, fragment);
    if (coder_ == nullptr) continue;
    std::string frame;
    shard.coded = coder_->Encode(shard.id, &frame);
    if (shard.coded.ok()) shard.values.SetFrame(std::move(frame));
  }
  Begin([this, round, samples](Shard& shard, std::stop_token stop) -> absl::Status {
    CADRE_RETURN_IF_ERROR(coder_ != nullptr ? shard.coded
                                            : shard.values.MakeContribution(progress_));
    const std::vector<Owned>& parts = shard.values.contribution()->parts;
    v1::ContributionHeader header = HeaderOf(parts, round, samples);
    header.set_fragment(shard.values.contribution()->fragment);
    if (form_.up) header.set_codec(form_.up->codec());
    if (!parts.empty()) {
      CADRE_RETURN_IF_ERROR(
          shard.client->Stage(header, shard.values.bytes(), &shard.traffic, stop));
    }
    absl::MutexLock lock(&mutex_);
    shard.held.EndStage(round);
    shard.header = std::move(header);
    return absl::OkStatus();
  });
}

void ShardExchange::BeginStageVersion(uint32_t version) {
  Begin([this, version](Shard& shard, std::stop_token stop) -> absl::Status {
    const std::vector<Owned>& parts = shard.values.parts();
    v1::ContributionHeader header = HeaderOf(parts, version, /*samples=*/1);
    header.set_seed(true);
    return shard.client->Stage(header, std::as_bytes(shard.values.Contiguous()), &shard.traffic,
                               std::move(stop));
  });
}

void ShardExchange::BeginPull(uint32_t version, bool included, bool screened) {
  // The coder belongs to this thread.
  for (Shard& shard : shards_) {
    if (coder_ == nullptr) break;
    const auto share = shard.values.Decide(version, included, screened, progress_);
    if (share) coder_->Carry(shard.id, /*left_out=*/included, share->factor);
  }
  Begin([=, this](Shard& shard, std::stop_token stop) -> absl::Status {
    shard.values.Decide(version, included, screened, progress_);
    {
      absl::MutexLock lock(&mutex_);
      shard.held.BeginPull();
    }
    CADRE_RETURN_IF_ERROR(PullInto(shard, version, stop));
    absl::MutexLock lock(&mutex_);
    shard.held.EndPull(version);
    return absl::OkStatus();
  });
}

void ShardExchange::Begin(std::function<absl::Status(Shard&, std::stop_token)> work) {
  CHECK(!begun());
  running_ = runtime_.Start([this, work = std::move(work)] {
    const absl::Time begin = runtime_.clock().Now();
    result_ = ForEachShard(
        [&work](Shard& shard, std::stop_token stop) {
          return shard.values.size() == 0 ? absl::OkStatus() : work(shard, std::move(stop));
        },
        &traffic_);
    duration_ = runtime_.clock().Now() - begin;
  });
}

absl::Status ShardExchange::Finish(Traffic* traffic) {
  running_.reset();
  *traffic += std::exchange(traffic_, Traffic());
  return result_;
}

v1::PullRequest ShardExchange::RequestOf(const std::vector<Owned>& parts, uint32_t version) const {
  v1::PullRequest request;
  request.set_run(rank_slot_.run());
  request.set_lineage(lineage_);
  request.set_version(version);
  request.set_group(rank_slot_.group());
  request.set_generation(rank_slot_.generation());
  FillRanges(parts, request);
  return request;
}

absl::Status ShardExchange::PullInto(Shard& shard, uint32_t version, std::stop_token stop) const {
  ShardValues& values = shard.values;
  while (form_.down && values.version_number() && *values.version_number() < version) {
    const absl::Status added = AddFrame(shard, stop);
    if (absl::IsFailedPrecondition(added)) break;
    CADRE_RETURN_IF_ERROR(added);
  }
  if (values.version_number() == version) return absl::OkStatus();
  const auto& contribution = values.contribution();
  // The rest of the version is that of the one before.
  const bool has_rest = values.version_number() && *values.version_number() + 1 == version &&
                        contribution && contribution->round == version &&
                        contribution->fragment > 0;
  if (!has_rest) {
    CADRE_RETURN_IF_ERROR(shard.client->Pull(RequestOf(values.parts(), version),
                                             values.BeginVersion(), &shard.traffic, stop));
    values.SetVersion(version);
    return absl::OkStatus();
  }
  const std::vector<Owned>& parts = contribution->parts;
  int64_t elements = 0;
  for (const Owned& part : parts) elements += part.positions.size();
  std::vector<float> exchanged(elements);
  CADRE_RETURN_IF_ERROR(
      shard.client->Pull(RequestOf(parts, version), exchanged, &shard.traffic, stop));
  values.SetExchanged(exchanged);
  return absl::OkStatus();
}

absl::Status ShardExchange::AddFrame(Shard& shard, std::stop_token stop) const {
  ShardValues& values = shard.values;
  const int64_t max_words = MaxFrameWords(values.UnitsOf(values.parts()), CodecOf(*form_.down));
  PulledFrame pulled;
  CADRE_RETURN_IF_ERROR(
      shard.client->PullFrame(RequestOf(values.parts(), *values.version_number() + 1), max_words,
                              &pulled, &shard.traffic, std::move(stop)));
  return values.AddFrame(pulled, progress_);
}

absl::Status ShardExchange::PullState(uint32_t version, uint32_t state, std::span<float> values,
                                      Traffic* traffic) {
  CHECK(!begun());
  std::vector<std::span<float>> of_shards;
  for (const Shard& shard : shards_) {
    of_shards.push_back(values.first(shard.values.size()));
    values = values.subspan(of_shards.back().size());
  }
  return ForEachShard(
      [&](Shard& shard, std::stop_token stop) -> absl::Status {
        v1::PullRequest request = RequestOf(shard.values.parts(), version);
        request.set_state(state);
        return shard.client->Pull(request, of_shards[shard.id], &shard.traffic, std::move(stop));
      },
      traffic);
}

void ShardExchange::AdoptInitial() {
  for (Shard& shard : shards_) shard.values.SetInitial();
}

uint32_t ShardExchange::Adopt() {
  uint32_t dropped = 0;
  absl::MutexLock lock(&mutex_);
  for (Shard& shard : shards_) {
    shard.held.Adopt();
    dropped = std::max(dropped, shard.values.Adopt());
  }
  return dropped;
}

void ShardExchange::Merge() {
  for (Shard& shard : shards_) shard.values.Merge();
}

absl::Status ShardExchange::Carried(std::span<float> values, bool weighted) const {
  if (coder_ != nullptr) return coder_->CopyOut(ContributionCoder::Kind::kCarried, values);
  for (const Shard& shard : shards_) {
    shard.values.CopyCarried(values.first(shard.values.size()), weighted);
    values = values.subspan(shard.values.size());
  }
  return absl::OkStatus();
}

std::vector<UpdateCount> ShardExchange::late() const {
  std::vector<UpdateCount> counts;
  for (const Shard& shard : shards_) {
    for (const LateChange& each : shard.values.late()) {
      counts.push_back({each.positions, each.round});
    }
  }
  return counts;
}

std::optional<uint32_t> ShardExchange::undecided_round() const {
  for (const Shard& shard : shards_) {
    if (shard.values.undecided()) return shard.values.contribution()->round;
  }
  return std::nullopt;
}

std::vector<UpdateCount> ShardExchange::Changes() const {
  std::vector<UpdateCount> counts;
  for (const Shard& shard : shards_) {
    for (const LateChange& each : shard.values.Changes()) {
      counts.push_back({each.positions, each.round});
    }
  }
  return counts;
}

absl::Status ShardExchange::WhatMayBeKept(std::span<float> change,
                                          std::span<float> left_out) const {
  if (coder_ != nullptr) return CopyOut(change, left_out);
  CADRE_RETURN_IF_ERROR(Carried(change, /*weighted=*/false));
  std::fill(left_out.begin(), left_out.end(), 0.0F);
  for (const Shard& shard : shards_) {
    if (shard.values.undecided()) shard.values.CopyUndecided(change, left_out, progress_);
    change = change.subspan(shard.values.size());
    if (!left_out.empty()) left_out = left_out.subspan(shard.values.size());
  }
  return absl::OkStatus();
}

absl::Status ShardExchange::CopyOut(std::span<float> change, std::span<float> left_out) const {
  using Kind = ContributionCoder::Kind;
  for (const Shard& shard : shards_) CADRE_RETURN_IF_ERROR(shard.coded);
  CADRE_RETURN_IF_ERROR(coder_->CopyOut(Kind::kChange, change));
  CADRE_RETURN_IF_ERROR(coder_->CopyOut(Kind::kLeftOut, left_out));
  for (const Shard& shard : shards_) {
    shard.values.ClearStatistics(change);
    change = change.subspan(shard.values.size());
  }
  return absl::OkStatus();
}

void ShardExchange::SetCarried(std::vector<float> carried, std::span<const LateChange> late) {
  std::span<float> values = carried;
  for (Shard& shard : shards_) {
    const std::span<float> of_shard = values.first(shard.values.size());
    values = values.subspan(of_shard.size());
    std::vector<LateChange> of_parts;
    for (const LateChange& each : late) {
      const Interval positions = Intersect(each.positions, shard.values.positions());
      if (!positions.empty()) of_parts.push_back({positions, each.round, each.factor});
    }
    shard.values.SetCarried(of_shard, std::move(of_parts));
    if (coder_ == nullptr) continue;
    shard.values.CopyCarried(of_shard, /*weighted=*/true);
    shard.values.SetCarried({}, {});
  }
  if (coder_ != nullptr) coder_->SetCarried(carried);
}

void ShardExchange::OnRestage(const v1::Restage& restage) {
  absl::MutexLock lock(&restages_mutex_);
  std::erase_if(restages_, [](const auto& task) { return task->done(); });
  const std::tuple request(restage.shard(), restage.round(), restage.seed());
  if (!unanswered_.insert(request).second) return;  // repeated
  restages_.push_back(runtime_.Start([this, restage, request] {
    const absl::Status status = StageAgain(restage);
    LOG(INFO) << "staging " << (restage.seed() ? "version " : "round ") << restage.round()
              << " again at shard " << restage.shard() << ": " << status;
    v1::Restaged restaged;
    *restaged.mutable_place() = rank_slot_;
    restaged.set_shard(restage.shard());
    restaged.set_round(restage.round());
    restaged.set_seed(restage.seed());
    if (!status.ok()) restaged.set_error(status.ToString());
    // The same request may arrive again as soon as the answer is sent.
    {
      absl::MutexLock running(&restages_mutex_);
      unanswered_.erase(request);
    }
    control_.Send(restaged);
  }));
}

absl::Status ShardExchange::StageAgain(const v1::Restage& restage) {
  if (restage.shard() >= shards_.size())
    return absl::InvalidArgumentError("there is no such shard");
  const uint32_t round = restage.round();
  Shard& shard = shards_[restage.shard()];
  const ShardValues& values = shard.values;
  if (values.size() == 0) return absl::OkStatus();
  v1::ContributionHeader header;
  std::vector<std::byte> bytes;
  {
    absl::MutexLock lock(&mutex_);
    const bool holds =
        restage.seed() ? shard.held.HasVersion(round) : shard.held.HasContribution(round);
    if (!holds) return absl::NotFoundError("the rank does not hold the values");
    // The rank may have no part of the fragment.
    if (!restage.seed() && values.contribution()->parts.empty()) return absl::OkStatus();
    const auto held = restage.seed() ? std::as_bytes(std::span(values.version())) : values.bytes();
    bytes.assign(held.begin(), held.end());
    if (!restage.seed()) header = shard.header;
  }
  if (restage.seed()) {
    header = HeaderOf(values.parts(), round, /*samples=*/1);
    header.set_seed(true);
  }
  Traffic traffic;
  return shard.client->Stage(header, bytes, &traffic, {});
}

}  // namespace cadre
