// What a host finds when it starts, and its verification. Part of ShardHost.
//
// An aggregator that reads all files before it joins the coordinator is away for as long as that
// takes, which groups and operators cannot tell from the loss of its host. So it joins with what
// the heads of files say. If more is damaged, the answer to OpenRun says what the shard has, as
// after any loss.
#include <glog/logging.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"
#include "server/run_terms.h"
#include "server/shard_host.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<ShardHost>> ShardHost::Open(const Options& options) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<ShardStore> store,
                         ShardStore::Open(*options.files, options.data_dir, options.name,
                                          options.threads, options.archive));
  auto host = std::unique_ptr<ShardHost>(new ShardHost(std::move(store), options));
  CADRE_ASSIGN_OR_RETURN(const std::vector<ShardStore::FoundRun> runs, host->store_->FindRuns());
  for (const ShardStore::FoundRun& found : runs) {
    const absl::StatusOr<RunTerms> terms = RunTermsOf(found.open);
    if (!terms.ok()) {
      LOG(ERROR) << "run " << found.open.run() << " is not restored: " << terms.status();
      continue;
    }
    if (found.closed) {
      // Only pulls follow, which check the blocks that they read.
      CADRE_ASSIGN_OR_RETURN(const ShardStore::FoundRun loaded,
                             host->store_->LoadRun(found.open.run(), nullptr));
      host->Restore(*terms, loaded);
      continue;
    }
    absl::MutexLock lock(&host->mutex_);
    host->unverified_.Add(*terms, found.versions, found.unread_bytes);
    host->runs_.Set(found.open, /*closed=*/false);
  }
  host->store_->RemoveOldSetAside();
  const auto unverified = options.verify ? host->Unverified() : decltype(host->Unverified())();
  for (const auto& [run, progress] : unverified) CADRE_RETURN_IF_ERROR(host->Verify(run));
  for (const v1::ShardState& state : host->States()) {
    LOG(INFO) << "on disk: run " << state.run() << ", shard " << state.shard() << ", version "
              << state.version() << ", digest " << DigestHex(state.digest());
  }
  return host;
}

absl::Status ShardHost::Verify(const std::string& run, const std::stop_token& stop) {
  const RunTurns::Turn turn = turns_.Begin(run);
  {
    absl::MutexLock lock(&mutex_);
    if (unverified_.Check(run).ok()) return absl::OkStatus();
    unverified_.BeginAgain(run);
  }
  const auto on_read = [&](uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    unverified_.OnRead(run, bytes);
    return stop.stop_requested() ? absl::CancelledError("the process ends") : absl::OkStatus();
  };
  const absl::StatusOr<ShardStore::FoundRun> found = store_->LoadRun(run, on_read);
  if (absl::IsCancelled(found.status())) return found.status();
  CADRE_RETURN_IF_ERROR(CountError(found.status()));
  CADRE_ASSIGN_OR_RETURN(const RunTerms terms, RunTermsOf(found->open));
  Restore(terms, *found);
  return absl::OkStatus();
}

void ShardHost::Restore(const RunTerms& terms, const ShardStore::FoundRun& found) {
  const auto restore = [&](Ledger& ledger) {
    return ledger.Restore(terms, found.closed, found.versions, found.contributions);
  };
  // As soon as the ledger has the run, ranks may stage again what is removed here.
  Ledger decided;
  Remove(restore(decided));
  // Old versions are left if the process ended between a commit and their removal.
  for (const uint32_t version : decided.ForgetObsolete(terms.run)) {
    store_->RemoveVersion(terms.run, version);
  }
  absl::MutexLock lock(&mutex_);
  unverified_.Erase(terms.run);
  restore(ledger_);
  ledger_.ForgetObsolete(terms.run);
  runs_.Set(found.open, found.closed);
}

std::vector<v1::ShardState> ShardHost::States() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ShardState> states = ledger_.States();
  for (v1::ShardState& state : unverified_.heads().States()) states.push_back(std::move(state));
  return states;
}

}  // namespace cadre
