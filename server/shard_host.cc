// A mutex and turns divide the work. `mutex_` protects the ledger and is held for decisions, never
// while the disk is accessed, so that heartbeats and fences do not wait for a disk that hangs. An
// order has the turn of its run during its disk I/O, so the orders of a run exclude one another,
// while ranks stage and pull and the orders of other runs are carried out.
//
// Every operation follows the same pattern: decide under the mutex, do the I/O without it, and
// report the result under the mutex. The state may have changed in between (a newer stream, a
// fence, a commit), so the ledger checks each report against the attempt or version that it
// granted.
//
// Files are removed when the ledger drops them, even while a stream writes them: the stream keeps
// its open file, and its report is refused. For the same reason a commit may unlink a version while
// ranks pull it. The names of a run's contributions have turns of their own (`names_`): a
// call that creates a file, or removes one that ranks may stage again (OpenRun, Finish, a loss),
// decides and acts in the same turn, so that a removal does not meet the file of a later decision.
#include "server/shard_host.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/file_limit.h"
#include "base/secret_key.h"
#include "base/status.h"
#include "model/frame.h"
#include "model/shard_space.h"
#include "server/client/proof.h"
#include "server/client/refusal.h"
#include "server/run_terms.h"

namespace cadre {
namespace {

// Null if the contribution is not a frame. InvalidArgument for a frame that is malformed.
absl::StatusOr<std::shared_ptr<const FrameIndex>> IndexFrame(const Staging& staging) {
  const StageGrant& grant = staging.grant;
  if (!grant.coding) return nullptr;
  CADRE_ASSIGN_OR_RETURN(FrameIndex index, FrameIndex::Scan(*staging.file, CodecOf(*grant.coding),
                                                            {grant.units.get(), grant.fragments},
                                                            grant.spans, grant.shard));
  return std::make_shared<const FrameIndex>(std::move(index));
}

// Replaces the grant's positions by elements of the states' file. Null: zeros.
absl::StatusOr<std::unique_ptr<VersionReader>> ReadState(uint32_t state,
                                                         absl::StatusOr<StoredStates> states,
                                                         PullGrant& grant) {
  CADRE_RETURN_IF_ERROR(states.status());
  if (states->reader == nullptr) return nullptr;
  if (state >= states->states ||
      !std::all_of(grant.spans.begin(), grant.spans.end(),
                   [&](const Interval& each) { return states->span.contains(each); })) {
    return absl::DataLossError(absl::StrCat("the file of the states of version ", grant.version,
                                            " of ", grant.run, " has ", states->states,
                                            " states, or those of other positions"));
  }
  grant.spans = states->ElementsOf(state, {grant.units.get(), grant.fragments}, grant.spans);
  return std::move(states->reader);
}

// Empty without a version.
v1::ShardState StateOf(const std::vector<v1::ShardState>& states, const std::string& run) {
  const auto found = std::find_if(states.begin(), states.end(),
                                  [&](const v1::ShardState& state) { return state.run() == run; });
  return found == states.end() ? v1::ShardState() : *found;
}

}  // namespace

ShardHost::ShardHost(std::unique_ptr<ShardStore> store, const Options& options)
    : store_(std::move(store)),
      counters_(options.counters),
      checkpoint_files_(options.checkpoint_files),
      free_bytes_(options.free_bytes),
      runs_([this](const std::string& run,
                   const KnownRuns::Run& known) ABSL_NO_THREAD_SAFETY_ANALYSIS -> int64_t {
        const int64_t elements =
            ledger_.StoredElements(run) + unverified_.heads().StoredElements(run);
        return elements * int64_t{sizeof(float)} + store_->copies().CountVersions(run) * known.copy;
      }) {}

absl::Status ShardHost::Refuse(const Refused& refused) const {
  counters_->Add(absl::StrCat("refused_", RefusalName(refused.refusal)));
  return RefusalStatus(refused.refusal, refused.reason);
}

absl::Status ShardHost::CountError(absl::Status status) const {
  if (absl::IsResourceExhausted(status)) {
    counters_->Add(IsOpenFilesExhausted(status) ? "open_files_exhausted" : "disk_full");
  }
  if (absl::IsDataLoss(status)) counters_->Add("damaged_files");
  if (status.ok()) return status;
  LOG(ERROR) << status;
  // Another process can continue: the error is not permanent.
  const absl::Status folder = store_->CheckFolder();
  return folder.ok() ? status : absl::UnavailableError(folder.message());
}

// The next process puts the damaged version aside, and the coordinator has the shard restored.
absl::Status ShardHost::OnReadError(const std::string& run, const absl::Status& status) {
  const absl::Status error = CountError(status);
  absl::MutexLock lock(&mutex_);
  if (!IsLoss(error) || ledger_.IsClosed(run)) return error;
  damage_.Update(absl::FailedPreconditionError(
      absl::StrCat(error.message(), "; the files must be read again")));
  return absl::UnavailableError(error.message());
}

absl::Status ShardHost::CheckFiles() const {
  CADRE_RETURN_IF_ERROR(store_->CheckFolder());
  absl::MutexLock lock(&mutex_);
  return damage_;
}

void ShardHost::Remove(const std::vector<ContributionKey>& keys) {
  if (keys.empty()) return;
  const RunTurns::Turn names = names_.Begin(keys.front().run);
  for (const ContributionKey& key : keys) store_->RemoveContribution(key);
}

absl::StatusOr<Opened> ShardHost::BeginRun(const v1::OpenRun& open, const RunTerms& terms,
                                           const std::optional<KnownRuns::Run>& known) {
  const bool replaces = known && known->open.lineage() != open.lineage();
  if (known && !replaces) PublishUntil(open.run(), open.version());
  const RunTurns::Turn names = names_.Begin(open.run());
  Decision<Opened> decision;
  {
    absl::MutexLock lock(&mutex_);
    CADRE_RETURN_IF_ERROR(unverified_.Check(open.run()));
    decision = ledger_.OpenRun(terms);
  }
  if (const auto* refused = std::get_if<Refused>(&decision)) return Refuse(*refused);
  Opened opened = std::get<Opened>(std::move(decision));
  if (replaces) {
    CADRE_RETURN_IF_ERROR(CountError(store_->ArchiveRun(open.run(), known->open.lineage())));
    absl::MutexLock lock(&mutex_);
    runs_.Erase(open.run());
  }
  for (const ContributionKey& key : opened.dropped) store_->RemoveContribution(key);
  return opened;
}

absl::StatusOr<v1::RunOpened> ShardHost::OpenRun(const v1::OpenRun& open) {
  const RunTurns::Turn turn = turns_.Begin(open.run());
  CADRE_RETURN_IF_ERROR(SpaceOf(open).status());
  // Files of a removed folder must not be created again beside those that are missing.
  CADRE_RETURN_IF_ERROR(CountError(store_->CheckFolder()));
  const std::optional<KnownRuns::Run> known = Known(open.run());
  const absl::Cleanup release = [&] {
    absl::MutexLock lock(&mutex_);
    runs_.Release(open.run());
  };
  v1::RunOpened answer;
  answer.set_run(open.run());
  answer.set_shard(open.shard());
  answer.set_shards(open.shards());
  // A hollow one is to receive its version from another aggregator.
  if (!known && (open.version() == 0 || open.has_hollow())) {
    if (const std::string full = Reserve(open); !full.empty()) {
      answer.set_error(full);
      return answer;
    }
  }
  CADRE_ASSIGN_OR_RETURN(const RunTerms terms, RunTermsOf(open));
  CADRE_ASSIGN_OR_RETURN(const Opened opened, BeginRun(open, terms, known));
  // After a reassignment, version 0 of the old shard must not be used for the new one.
  if (opened.make_version_zero || opened.reassigned) store_->RemoveVersion(open.run(), 0);
  // If the process ends before the run file is saved, the shard has no version, which the answer to
  // the next OpenRun tells.
  for (const uint32_t version : opened.discarded) store_->DiscardVersion(open.run(), version);
  v1::OpenRun saved = open;
  saved.clear_keys();
  saved.clear_hollow();
  if (opened.hollow) saved.set_hollow(*opened.hollow);
  absl::Status made = CountError(store_->SaveRun(saved, /*closed=*/false));
  if (made.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      runs_.Set(saved, /*closed=*/false);
    }
    if (opened.make_version_zero) made = CountError(MakeVersionZero(open, terms));
  }
  if (!made.ok()) {
    if (!opened.make_version_zero || IsTransient(made) || absl::IsDataLoss(made)) return made;
    answer.set_error(std::string(made.message()));
    return answer;
  }
  return Describe(open.run());
}

v1::RunOpened ShardHost::Describe(const std::string& run) const {
  v1::RunOpened shard;
  shard.set_run(run);
  absl::MutexLock lock(&mutex_);
  const std::optional<KnownRuns::Run> known = runs_.Find(run);
  if (!known) return shard;
  shard.set_shard(known->open.shard());
  shard.set_shards(known->open.shards());
  const v1::ShardState state = StateOf(ledger_.States(), run);
  shard.set_hollow(state.run().empty());
  shard.set_version(ledger_.HollowVersion(run).value_or(state.version()));
  shard.set_digest(state.digest());
  *shard.mutable_kept() = ledger_.OlderVersions(run);
  return shard;
}

// Other programs may use the disk as well, so a write can fail for lack of space nevertheless; the
// order is then retried for some time.
std::string ShardHost::Reserve(const v1::OpenRun& open) {
  if (!free_bytes_) return "";
  const absl::StatusOr<int64_t> free = free_bytes_();
  if (!free.ok()) return "";
  const int64_t needed = SpaceOf(open).value_or(0);
  absl::MutexLock lock(&mutex_);
  const auto reserved = runs_.Reserve(open.run(), needed, *free);
  if (!reserved.has_value()) return "";
  return absl::StrCat(kTooLittleSpace, ": shard ", open.shard(), " needs ", needed, " bytes, ",
                      *free, " are free, and ", *reserved, " of these are reserved for other runs");
}

absl::Status ShardHost::MakeVersionZero(const v1::OpenRun& open, const RunTerms& terms) {
  // A damaged checkpoint stays damaged. The shard's own disk is tried again.
  const auto permanent = [](const absl::Status& status) {
    return absl::IsDataLoss(status) ? absl::InvalidArgumentError(status.message()) : status;
  };
  absl::StatusOr<ShardStore::InitialVersion> initial =
      MakeInitialVersion(open.spec(), checkpoint_files_);
  if (!initial.ok()) return permanent(initial.status());
  const auto make_permanent = [&permanent](ShardStore::Fill& fill) {
    if (!fill) return;
    fill = [&permanent, read = std::move(fill)](int64_t first, std::span<float> out) {
      return permanent(read(first, out));
    };
  };
  make_permanent(initial->values);
  for (ShardStore::Fill& fill : initial->states) make_permanent(fill);
  CADRE_ASSIGN_OR_RETURN(const VersionStats stats, store_->WriteInitial(terms, *initial));
  counters_->Add("versions_written");
  absl::MutexLock lock(&mutex_);
  ledger_.VersionDurable(open.run(), 0, stats);
  return absl::OkStatus();
}

void ShardHost::Fence(const v1::Fence& fence) {
  absl::MutexLock lock(&mutex_);
  const std::vector<ContributionKey> dropped =
      ledger_.Fence(fence.run(), fence.group(), {fence.generation(), ParseSecretKey(fence.key())});
  std::vector<ContributionKey>& fenced = fenced_[fence.run()];
  fenced.insert(fenced.end(), dropped.begin(), dropped.end());
  if (fenced.empty()) fenced_.erase(fence.run());
}

absl::Status ShardHost::CloseRun(const std::string& run) {
  {
    const RunTurns::Turn turn = turns_.Begin(run);
    const std::optional<KnownRuns::Run> known = Known(run);
    if (!known || known->closed) return absl::OkStatus();
    {
      absl::MutexLock lock(&mutex_);
      CADRE_RETURN_IF_ERROR(unverified_.Check(run));
    }
    // The time of the run file is that of the end.
    CADRE_RETURN_IF_ERROR(CountError(store_->SaveRun(known->open, /*closed=*/true)));
    PublishUntil(run, std::numeric_limits<uint32_t>::max());
    std::vector<ContributionKey> dropped;
    {
      absl::MutexLock lock(&mutex_);
      runs_.Close(run);
      dropped = ledger_.CloseRun(run);
    }
    Remove(dropped);
  }
  return absl::OkStatus();
}

absl::Status ShardHost::DeleteRun(const v1::DeleteRun& order) {
  if (!ShardStore::IsFileName(order.run()) || !ShardStore::IsFileName(order.lineage())) {
    return absl::InvalidArgumentError("not a run id and a lineage");
  }
  const RunTurns::Turn turn = turns_.Begin(order.run());
  const RunTurns::Turn names = names_.Begin(order.run());
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<KnownRuns::Run> known = runs_.Find(order.run());
    if (known && known->open.lineage() == order.lineage()) {
      runs_.Erase(order.run());
      unverified_.Erase(order.run());
      ledger_.Forget(order.run());
    }
  }
  return CountError(store_->RemoveRun(order.run(), order.lineage()));
}

v1::RunReport ShardHost::ReportRun(const std::string& run) const {
  v1::RunReport report;
  report.set_run(run);
  const std::optional<KnownRuns::Run> known = Known(run);
  if (!known) return report;
  *report.mutable_open() = known->open;
  report.set_closed(known->closed);
  *report.mutable_state() = StateOf(States(), run);
  absl::MutexLock lock(&mutex_);
  ledger_.Report(run, report);
  return report;
}

// --- The ranks' streams

template <typename Message>
absl::Status ShardHost::Authenticate(const Message& message) const {
  if (const auto wrong = WhyIncompatible(message.protocol())) return Refuse(*wrong);
  Decision<SecretKey> key;
  {
    absl::MutexLock lock(&mutex_);
    if (const absl::Status status = unverified_.Check(message.run()); !status.ok()) {
      key = Refused{.reason = std::string(status.message())};
    } else {
      key = ledger_.KeyOf(message.run(), message.group(), message.generation());
    }
  }
  if (const auto* refused = std::get_if<Refused>(&key)) return Refuse(*refused);
  if (IsSigned(std::get<SecretKey>(key), message)) return absl::OkStatus();
  return Refuse({v1::REFUSAL_WRONG_KEY,
                 absl::StrCat("the caller is not a rank of generation ", message.generation(),
                              " of group ", message.group(), " of ", message.run())});
}

template absl::Status ShardHost::Authenticate(const v1::ContributionHeader&) const;
template absl::Status ShardHost::Authenticate(const v1::PullRequest&) const;

absl::StatusOr<Staging> ShardHost::Stage(const v1::ContributionHeader& header) {
  if (const auto wrong = WhyIncompatible(header.protocol())) return Refuse(*wrong);
  // Another attempt for the same contribution has another proof. What has no meaning is not stored.
  v1::ContributionHeader contribution = header;
  contribution.clear_proof();
  contribution.DiscardUnknownFields();
  auto& ranges = *contribution.mutable_ranges();
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(),
                              [](const v1::Range& range) { return range.begin() == range.end(); }),
               ranges.end());
  const RunTurns::Turn names = names_.Begin(header.run());
  Decision<StageGrant> decision;
  {
    absl::MutexLock lock(&mutex_);
    decision = ledger_.Stage(contribution);
  }
  if (const auto* refused = std::get_if<Refused>(&decision)) return Refuse(*refused);
  Staging staging{std::get<StageGrant>(std::move(decision)), nullptr};
  const StageGrant& grant = staging.grant;
  absl::StatusOr<std::unique_ptr<BlockFile>> file =
      store_->OpenContribution(grant.key, contribution, grant.elements, grant.fresh);
  if (!file.ok()) {
    // An error such as too many open files does not mean that the data on disk is lost.
    if (grant.fresh || IsLoss(file.status())) {
      absl::MutexLock lock(&mutex_);
      ledger_.ContributionLost(grant.key);
    }
    return CountError(file.status());
  }
  staging.file = *std::move(file);
  return staging;
}

absl::StatusOr<bool> ShardHost::Put(Staging& staging, const ChunkView& chunk) {
  const StageGrant& grant = staging.grant;
  uint32_t crc = 0;
  for (const absl::string_view part : chunk.data) crc = ExtendCrc32c(crc, part);
  {
    absl::MutexLock lock(&mutex_);
    if (const auto refused = ledger_.CheckChunk(grant.key, grant.attempt, chunk.index,
                                                chunk.bytes(), crc == chunk.crc32c)) {
      return Refuse(*refused);
    }
  }
  CADRE_RETURN_IF_ERROR(CountError(staging.file->WriteBlock(chunk.index, chunk.data, crc)));
  counters_->Add("staged_bytes", chunk.bytes());
  absl::MutexLock lock(&mutex_);
  return ledger_.ChunkStored(grant.key, grant.attempt);
}

absl::Status ShardHost::Finish(Staging& staging) {
  const auto lose = [&] {
    const RunTurns::Turn names = names_.Begin(staging.grant.key.run);
    std::vector<ContributionKey> lost;
    {
      absl::MutexLock lock(&mutex_);
      lost = ledger_.SyncFailed(staging.grant.key);
    }
    for (const ContributionKey& key : lost) store_->RemoveContribution(key);
  };
  absl::StatusOr<std::shared_ptr<const FrameIndex>> frame = IndexFrame(staging);
  if (absl::IsInvalidArgument(frame.status())) {
    lose();
    return Refuse({v1::REFUSAL_MALFORMED,
                   absl::StrCat(staging.grant.key.ToString(), ": ", frame.status().message())});
  } else if (!frame.ok()) {
    return CountError(frame.status());
  }
  const absl::Status synced = CountError(store_->SyncContribution(*staging.file));
  if (!synced.ok()) {
    // The kernel drops pages that it could not write, and reports the error only once: another sync
    // would succeed without the data.
    lose();
    return synced;
  }
  absl::MutexLock lock(&mutex_);
  if (ledger_.ContributionDurable(staging.grant.key, staging.grant.attempt, *std::move(frame))) {
    counters_->Add("contributions_staged");
    return absl::OkStatus();
  }
  return Refuse(ledger_.WhyDropped(staging.grant.key));
}

absl::StatusOr<std::unique_ptr<VersionPull>> ShardHost::Pull(const v1::PullRequest& request) {
  if (const auto wrong = WhyIncompatible(request.protocol())) return Refuse(*wrong);
  PullDecision decision;
  absl::StatusOr<std::unique_ptr<VersionReader>> reader = nullptr;
  absl::StatusOr<StoredStates> states;
  // A commit may unlink the files before they are open, which the second decision knows. Open files
  // stay readable.
  for (const bool again : {true, false}) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Status verified = unverified_.Check(request.run());
      if (verified.ok()) decision = ledger_.Pull(request);
      if (!verified.ok()) decision = Refused{.reason = std::string(verified.message())};
    }
    const auto* const grant = std::get_if<PullGrant>(&decision);
    if (grant == nullptr || request.has_frame_from()) break;
    if (request.has_state()) {
      states = store_->versions().OpenStates(grant->run, grant->version);
    } else {
      reader = store_->versions().Open(grant->run, grant->version);
    }
    const absl::Status opened = request.has_state() ? states.status() : reader.status();
    if (!again || !absl::IsNotFound(opened)) break;
  }
  if (const auto* refused = std::get_if<Refused>(&decision)) return Refuse(*refused);
  if (const auto* none = std::get_if<NoSuchVersion>(&decision)) {
    return absl::FailedPreconditionError(absl::StrCat("version ", none->requested, " of ",
                                                      request.run(), " is not stored; version ",
                                                      none->current, " is the current one"));
  }
  PullGrant grant = std::get<PullGrant>(std::move(decision));
  if (request.has_frame_from()) return PullFrame(std::move(grant), request.frame_from());
  if (request.has_state()) reader = ReadState(request.state(), std::move(states), grant);
  if (!reader.ok()) return OnReadError(grant.run, reader.status());
  if (*reader != nullptr &&
      !std::all_of(grant.spans.begin(), grant.spans.end(),
                   [&](const Interval& span) { return (*reader)->span().contains(span); })) {
    return absl::DataLossError(absl::StrCat("the file of version ", grant.version, " of ",
                                            grant.run, " covers other positions"));
  }
  return std::make_unique<VersionPull>(
      std::move(grant), *std::move(reader),
      [this, run = request.run()](const absl::Status& error) { return OnReadError(run, error); });
}

// The caller pulls the version instead if there is no frame.
absl::StatusOr<std::unique_ptr<VersionPull>> ShardHost::PullFrame(PullGrant grant, uint64_t from) {
  const auto none = [version = grant.version](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no frame of version ", version, ": ", why));
  };
  if (grant.units == nullptr || grant.spans.empty()) return none("the run has none");
  const Interval positions{grant.spans.front().begin, grant.spans.back().end};
  if (positions.size() != grant.elements || !grant.units->IsBorder(positions.begin) ||
      !grant.units->IsBorder(positions.end)) {
    return none("the positions are not whole units in order");
  }
  // A commit may remove the frame at any time.
  absl::StatusOr<StoredFrame> frame =
      store_->frames().Open(grant.run, grant.version, *grant.units, grant.fragments, positions);
  if (!frame.ok()) return none(frame.status().message());
  const int64_t elements = frame->elements.size();
  const int64_t skipped = std::min<uint64_t>(from, elements);
  grant.spans = {{frame->elements.begin + skipped, frame->elements.end}};
  grant.elements = elements - skipped;
  return std::make_unique<VersionPull>(
      std::move(grant), std::move(frame->reader),
      [none](const absl::Status& error) { return none(error.message()); },
      FrameHead{.elements = elements, .fragment = frame->fragment});
}

}  // namespace cadre
