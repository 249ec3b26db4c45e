// Averaging without a root rank: every rank exchanges exactly what it owns.
//
// Each element of the model is owned by one rank of a group and by one aggregator shard. A rank
// intersects its intervals with those of each shard and exchanges the overlaps. Neither side needs
// the other's partition, so groups with different meshes average with one another through any
// number of shards, and a rank sends n / p elements in each direction for a model of n elements and
// p ranks. No rank holds the whole model for this.
//
// Each shard has its own task. The disks and the network bound the speed; without overlap no step
// is computed meanwhile. The values of a call are copied into one buffer per shard and direction,
// because owned intervals are scattered over buckets while the client sends contiguous chunks, and
// because training changes the owned values meanwhile.
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
#include "server/client/frame.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

int64_t ElementsOf(const std::vector<Owned>& parts) {
  int64_t elements = 0;
  for (const Owned& part : parts) elements += part.positions.size();
  return elements;
}

void CopyFrom(const std::vector<Owned>& parts, std::vector<float>* values) {
  values->clear();
  values->reserve(ElementsOf(parts));
  for (const Owned& part : parts) {
    values->insert(values->end(), part.values.begin(), part.values.end());
  }
}

void CopyTo(const std::vector<float>& values, const std::vector<Owned>& parts) {
  auto from = values.begin();
  for (const Owned& part : parts) {
    std::copy_n(from, part.values.size(), part.values.begin());
    from += std::ssize(part.values);
  }
}

}  // namespace

ShardExchange::ShardExchange(Runtime& runtime, const v1::Assignment& assignment,
                             const ParameterIndex& index, std::span<const Owned> owned,
                             GroupControl& control, Cancellation& cancellation,
                             TrainerProgress& progress, const Options& options)
    : rank_slot_(assignment.place()),
      lineage_(assignment.lineage()),
      index_(index),
      units_(options.units),
      up_(CodingOf(assignment.spec().averaging().up())),
      down_(CodingOf(assignment.spec().averaging().down())),
      overlap_(assignment.spec().averaging().overlap()),
      fragments_(FragmentsOf(assignment.spec().averaging())),
      averaging_(assignment.spec().averaging()),
      runtime_(runtime),
      control_(control),
      coder_(options.coder) {
  CHECK(coder_ == nullptr || CodesOnDevice(assignment.spec().averaging()));
  const uint32_t shards = assignment.shards_size();
  // The group could not have connected with a key of another size.
  const SecretKey key = ParseSecretKey(assignment.key()).value_or(SecretKey{});
  for (uint32_t id = 0; id < shards; ++id) {
    Shard shard{.id = id,
                .positions = units_ != nullptr ? units_->PartOf(id, shards)
                                               : ShardSpan(index.size(), id, shards)};
    shard.parts = PartsIn(shard.positions, owned);
    // Different seeds, so that ranks that failed together do not retry at the same times.
    const uint64_t seed = (uint64_t{rank_slot_.group()} << 32) + rank_slot_.rank() * 64 + id;
    shard.client = runtime.MakeShardClient({
        .location = [&control, id] { return control.LocationOf(id); },
        .away = [&control, id] { return control.ShardIsAway(id); },
        .transfer = {.seed = seed, .silence = options.silence},
        .on_progress = [&progress] { progress.Advance(); },
        .key = key,
    });
    shards_.push_back(std::move(shard));
  }
  on_cancel_ = cancellation.OnCancel([this](const absl::Status&) {
    for (Shard& shard : shards_) shard.client->Cancel();
  });
  control_.HandleRestage([this](const v1::Restage& restage) { OnRestage(restage); });
}

ShardExchange::~ShardExchange() {
  control_.HandleRestage(nullptr);
  for (Shard& shard : shards_) shard.client->Cancel();
}

int64_t ShardExchange::ExpectedBytes() const {
  // The version, the staged values or what their frame leaves out, the change, what is carried.
  int64_t buffers = KeepsChanges(averaging_) ? 4 : 2;
  if (overlap_.steps() > 0) ++buffers;
  if (overlap_.steps() > 0 || fragments_ > 1) ++buffers;
  int64_t elements = 0;
  for (const Shard& shard : shards_) {
    elements += buffers * ElementsOf(shard.parts);
    if (up_) elements += MaxFrameWords(UnitsOf(shard.parts), CodecOf(*up_));
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

int64_t ShardExchange::AllocatedBytes() const {
  size_t bytes = 0;
  for (const Shard& shard : shards_) {
    for (const std::vector<float>* const buffer :
         {&shard.staged, &shard.version, &shard.contributed, &shard.merged, &shard.carried,
          &shard.change, &shard.left_out}) {
      bytes += buffer->capacity() * sizeof(float);
    }
    if (up_) bytes += shard.frame.capacity();
  }
  return static_cast<int64_t>(bytes);
}

template <typename Message>
void ShardExchange::FillRanges(const std::vector<Owned>& parts, Message& message) const {
  for (const Owned& part : parts) {
    for (const v1::Range& range : index_.RangesOf(part.positions.begin, part.positions.end)) {
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

std::vector<Owned> ShardExchange::PartsOf(const Shard& shard, uint32_t fragment) const {
  if (fragment == 0 || shard.parts.empty()) return shard.parts;
  std::vector<Owned> parts;
  const Interval all{shard.parts.front().positions.begin, shard.parts.back().positions.end};
  for (const Interval& interval : units_->FragmentIn(all, fragment, fragments_)) {
    for (const Owned& part : PartsIn(interval, shard.parts)) parts.push_back(part);
  }
  return parts;
}

void ShardExchange::BeginStage(uint32_t round, uint64_t samples, uint32_t fragment) {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&mutex_);
    shard.held.BeginStage();
    Contribution& contribution = shard.contribution.emplace(
        Contribution{.round = round, .fragment = fragment, .parts = PartsOf(shard, fragment)});
    if (coder_ != nullptr) {
      shard.frame.clear();
      contribution.coded = coder_->Encode(shard.id, &shard.frame);
      continue;
    }
    CopyFrom(contribution.parts, &ValuesOf(shard));
    if (overlap_.steps() > 0) shard.contributed = ValuesOf(shard);
  }
  Begin([this, round, samples](Shard& shard, std::stop_token stop) -> absl::Status {
    Contribution& contribution = *shard.contribution;
    CADRE_RETURN_IF_ERROR(coder_ != nullptr ? contribution.coded : MakeContribution(shard));
    v1::ContributionHeader header = HeaderOf(contribution.parts, round, samples);
    header.set_fragment(contribution.fragment);
    if (up_) header.set_codec(up_->codec());
    if (!contribution.parts.empty()) {
      CADRE_RETURN_IF_ERROR(shard.client->Stage(header, BytesOf(shard), &shard.traffic, stop));
    }
    absl::MutexLock lock(&mutex_);
    shard.held.EndStage(round);
    contribution.header = std::move(header);
    return absl::OkStatus();
  });
}

void ShardExchange::BeginStageVersion(uint32_t version) {
  for (Shard& shard : shards_) CopyFrom(shard.parts, &shard.staged);
  Begin([this, version](Shard& shard, std::stop_token stop) -> absl::Status {
    v1::ContributionHeader header = HeaderOf(shard.parts, version, /*samples=*/1);
    header.set_seed(true);
    const auto values = std::as_bytes(std::span(shard.staged));
    return shard.client->Stage(header, values, &shard.traffic, std::move(stop));
  });
}

void ShardExchange::BeginPull(uint32_t version) {
  Begin([this, version](Shard& shard, std::stop_token stop) -> absl::Status {
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
          return shard.parts.empty() ? absl::OkStatus() : work(shard, std::move(stop));
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

std::vector<ExchangeUnit> ShardExchange::UnitsOf(const std::vector<Owned>& parts) const {
  std::vector<Interval> intervals;
  for (const Owned& part : parts) intervals.push_back(part.positions);
  return units_->In(intervals);
}

template <typename Use>
void ShardExchange::ForEachValue(const Shard& shard, const std::vector<Owned>& parts,
                                 const Use& use) const {
  int64_t i = 0;
  int64_t before = 0;
  auto whole = shard.parts.begin();
  for (const Owned& part : parts) {
    for (; !whole->positions.contains(part.positions); ++whole) before += whole->positions.size();
    int64_t p = before + part.positions.begin - whole->positions.begin;
    for (const v1::Range& range : index_.RangesOf(part.positions.begin, part.positions.end)) {
      const bool trained = !IsStatistic(index_[range.tensor()].role);
      for (const int64_t end = i + static_cast<int64_t>(range.end() - range.begin()); i < end;
           ++i) {
        use(i, p++, trained);
      }
    }
  }
}

// Changes are relative to the version that the rank has adopted. Without an earlier change, values
// in fp32 are transferred as they are.
absl::Status ShardExchange::MakeContribution(Shard& shard) const {
  const std::vector<Owned>& parts = shard.contribution->parts;
  if (!keeps_changes() || parts.empty()) return absl::OkStatus();
  CHECK_EQ(std::ssize(shard.version), ElementsOf(shard.parts));
  const bool carries = !shard.carried.empty();
  if (!up_) shard.change = shard.staged;
  ForEachValue(shard, parts, [&](int64_t i, int64_t p, bool trained) {
    if (!trained) return;
    shard.change[i] = (shard.change[i] - shard.version[p]) + (carries ? shard.carried[p] : 0.0F);
    if (!up_ && carries) shard.staged[i] += shard.carried[p];
  });
  shard.left_out.clear();
  if (!up_) return absl::OkStatus();
  const std::vector<ExchangeUnit> units = UnitsOf(parts);
  const Codec codec = CodecOf(*up_);
  shard.frame.clear();
  shard.frame.reserve(MaxFrameWords(units, codec) * sizeof(float));
  CADRE_RETURN_IF_ERROR(EncodeFrame(units, codec, shard.change, &shard.frame));
  CADRE_RETURN_IF_ERROR(DecodeFrame(units, codec, shard.frame, &shard.left_out));
  ForEachValue(shard, parts, [&](int64_t i, int64_t /*p*/, bool trained) {
    shard.left_out[i] = trained ? shard.change[i] - shard.left_out[i] : 0;
  });
  return absl::OkStatus();
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
  while (down_ && shard.version_number && *shard.version_number < version) {
    const absl::Status added = AddFrame(shard, stop);
    if (absl::IsFailedPrecondition(added)) break;
    CADRE_RETURN_IF_ERROR(added);
  }
  if (shard.version_number == version) return absl::OkStatus();
  // The rest of the version is that of the one before.
  const bool has_rest = shard.version_number && *shard.version_number + 1 == version &&
                        shard.contribution && shard.contribution->round == version;
  const std::vector<Owned>& parts = has_rest ? shard.contribution->parts : shard.parts;
  std::vector<float> values(ElementsOf(parts));
  CADRE_RETURN_IF_ERROR(
      shard.client->Pull(RequestOf(parts, version), values, &shard.traffic, stop));
  shard.version.resize(ElementsOf(shard.parts));
  ForEachValue(shard, parts,
               [&](int64_t i, int64_t p, bool /*trained*/) { shard.version[p] = values[i]; });
  shard.version_number = version;
  return absl::OkStatus();
}

absl::Status ShardExchange::AddFrame(Shard& shard, std::stop_token stop) const {
  const Codec codec = CodecOf(*down_);
  const int64_t max_words = MaxFrameWords(UnitsOf(shard.parts), codec);
  PulledFrame pulled;
  CADRE_RETURN_IF_ERROR(shard.client->PullFrame(RequestOf(shard.parts, *shard.version_number + 1),
                                                max_words, &pulled, &shard.traffic,
                                                std::move(stop)));
  if (pulled.fragment > 0 && (fragments_ == 1 || pulled.fragment > fragments_)) {
    return absl::DataLossError(absl::StrCat("the run has no fragment ", pulled.fragment));
  }
  const std::vector<Owned> parts = PartsOf(shard, pulled.fragment);
  std::vector<float> change;
  if (const absl::Status decoded = DecodeFrame(UnitsOf(parts), codec, pulled.bytes, &change);
      !decoded.ok()) {
    return absl::DataLossError(decoded.message());
  }
  ForEachValue(shard, parts, [&](int64_t i, int64_t p, bool trained) {
    shard.version[p] = trained ? shard.version[p] + change[i] : change[i];
  });
  ++*shard.version_number;
  return absl::OkStatus();
}

absl::Status ShardExchange::PullState(uint32_t version, uint32_t state, std::span<float> values,
                                      Traffic* traffic) {
  CHECK(!begun());
  std::vector<std::span<float>> of_shards;
  for (const Shard& shard : shards_) {
    of_shards.push_back(values.first(ElementsOf(shard.parts)));
    values = values.subspan(of_shards.back().size());
  }
  return ForEachShard(
      [&](Shard& shard, std::stop_token stop) -> absl::Status {
        v1::PullRequest request = RequestOf(shard.parts, version);
        request.set_state(state);
        return shard.client->Pull(request, of_shards[shard.id], &shard.traffic, std::move(stop));
      },
      traffic);
}

void ShardExchange::AdoptInitial() {
  for (Shard& shard : shards_) {
    CopyFrom(shard.parts, &shard.version);
    shard.version_number = 0;
  }
}

uint32_t ShardExchange::KeepChange(Shard& shard, bool included, bool screened) const {
  if (!shard.contribution || (coder_ == nullptr && !HasChange(shard))) return 0;
  const KeptShare share = KeptShareOf(averaging_, shard.contribution->round,
                                      shard.version_number.value_or(0), included, screened);
  if (coder_ != nullptr) {
    coder_->Carry(shard.id, /*left_out=*/included, share.factor);
    return share.dropped;
  }
  shard.carried.resize(ElementsOf(shard.parts));
  // A change in fp32 has left nothing out.
  const std::vector<float>& kept = included ? shard.left_out : shard.change;
  ForEachValue(shard, shard.contribution->parts, [&](int64_t i, int64_t p, bool trained) {
    // What was screened may not be finite.
    const bool keeps = trained && !kept.empty() && !screened;
    shard.carried[p] = keeps ? share.factor * kept[i] : 0;
  });
  return share.dropped;
}

absl::Status ShardExchange::Carried(std::vector<float>* values) const {
  values->clear();
  for (const Shard& shard : shards_) {
    values->insert(values->end(), shard.carried.begin(), shard.carried.end());
    values->resize(values->size() + ElementsOf(shard.parts) - shard.carried.size());
  }
  return coder_ == nullptr ? absl::OkStatus()
                           : coder_->CopyOut(ContributionCoder::Kind::kCarried, *values);
}

absl::Status ShardExchange::WhatMayBeKept(Keepable* keepable) const {
  keepable->exchanged.clear();
  for (const Shard& shard : shards_) {
    for (const Owned& part : shard.contribution->parts) {
      keepable->exchanged.push_back(part.positions);
    }
  }
  CADRE_RETURN_IF_ERROR(Carried(&keepable->change));
  keepable->left_out.assign(up_ ? keepable->change.size() : 0, 0);
  if (coder_ != nullptr) {
    using Kind = ContributionCoder::Kind;
    for (const Shard& shard : shards_) CADRE_RETURN_IF_ERROR(shard.contribution->coded);
    CADRE_RETURN_IF_ERROR(coder_->CopyOut(Kind::kChange, keepable->change));
    CADRE_RETURN_IF_ERROR(coder_->CopyOut(Kind::kLeftOut, keepable->left_out));
  }
  int64_t before = 0;
  for (const Shard& shard : shards_) {
    ForEachValue(shard, shard.contribution->parts, [&](int64_t i, int64_t p, bool trained) {
      float& change = keepable->change[before + p];
      if (coder_ == nullptr) change = shard.change[i];
      if (!trained) change = 0;
      if (!shard.left_out.empty()) keepable->left_out[before + p] = shard.left_out[i];
    });
    before += ElementsOf(shard.parts);
  }
  return absl::OkStatus();
}

void ShardExchange::SetCarried(std::span<const float> carried) {
  if (coder_ != nullptr) return coder_->SetCarried(carried);
  for (Shard& shard : shards_) {
    const int64_t n = ElementsOf(shard.parts);
    shard.carried.assign(carried.begin(), carried.begin() + n);
    carried = carried.subspan(n);
  }
}

uint32_t ShardExchange::Adopt(bool included, bool screened) {
  uint32_t dropped = 0;
  absl::MutexLock lock(&mutex_);
  for (Shard& shard : shards_) {
    shard.held.Adopt();
    dropped = std::max(dropped, KeepChange(shard, included, screened));
    if (overlap_.steps() > 0 || fragments_ > 1) PrepareMerge(shard);
    CopyTo(shard.version, shard.parts);
    shard.contribution.reset();
  }
  return dropped;
}

void ShardExchange::PrepareMerge(Shard& shard) const {
  CopyFrom(shard.parts, &shard.merged);
  const Contribution contribution = shard.contribution.value_or(Contribution());
  ForEachValue(shard, contribution.parts, [&](int64_t i, int64_t p, bool trained) {
    float& merged = shard.merged[p];
    const float live = std::exchange(merged, shard.version[p]);
    if (!trained || overlap_.steps() == 0) return;
    merged +=
        overlap_.has_blend() ? overlap_.blend() * (live - merged) : live - shard.contributed[i];
  });
  // Later versions may have changed any value that was not exchanged.
  const bool has_rest = contribution.fragment > 0 && shard.version_number == contribution.round;
  if (!has_rest && ElementsOf(contribution.parts) < ElementsOf(shard.parts)) {
    std::vector<float> merged = shard.version;
    ForEachValue(shard, contribution.parts,
                 [&](int64_t /*i*/, int64_t p, bool /*trained*/) { merged[p] = shard.merged[p]; });
    shard.merged = std::move(merged);
  }
}

void ShardExchange::Merge() {
  for (const Shard& shard : shards_) CopyTo(shard.merged, shard.parts);
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
  if (shard.parts.empty()) return absl::OkStatus();
  v1::ContributionHeader header;
  std::vector<std::byte> bytes;
  {
    absl::MutexLock lock(&mutex_);
    const bool holds =
        restage.seed() ? shard.held.HasVersion(round) : shard.held.HasContribution(round);
    if (!holds) return absl::NotFoundError("the rank does not hold the values");
    const auto held = restage.seed() ? std::as_bytes(std::span(shard.version)) : BytesOf(shard);
    bytes.assign(held.begin(), held.end());
    if (!restage.seed()) header = shard.contribution->header;
    // The rank has no part of the fragment.
    if (!restage.seed() && shard.contribution->parts.empty()) return absl::OkStatus();
  }
  if (restage.seed()) {
    header = HeaderOf(shard.parts, round, /*samples=*/1);
    header.set_seed(true);
  }
  Traffic traffic;
  return shard.client->Stage(header, bytes, &traffic, {});
}

}  // namespace cadre
