#include "cli/queries.h"

#include "absl/time/clock.h"
#include "cli/follow.h"
#include "cli/prediction_notes.h"
#include "cli/progress.h"
#include "cli/query_tables.h"
#include "cli/render.h"

namespace cadre {
int ListRuns(const GlobalOptions& options, const Console& console) {
  const absl::StatusOr<v1::ListReply> reply = MakeClient(options).List();
  if (!reply.ok()) return Fail(console, reply.status());
  if (reply->runs().empty() && !options.quiet) console.err << "no runs yet" << std::endl;
  Print(RunList{*reply}, options, console);
  return kExitOk;
}

int ShowStatus(const GlobalOptions& options, const std::string& run, const Console& console) {
  const absl::StatusOr<v1::StatusReply> reply = MakeClient(options).Status(run);
  if (!reply.ok()) return Fail(console, reply.status());
  Print(Overview{*reply, options.coordinator}, options, console);
  return kExitOk;
}

int DescribeRun(const GlobalOptions& options, const std::string& run, const Console& console) {
  const absl::StatusOr<v1::StatusReply> reply = MakeClient(options).Status(run);
  if (!reply.ok()) return Fail(console, reply.status());
  Print(RunDetails{*reply}, options, console);
  return kExitOk;
}

int ShowMembers(const GlobalOptions& options, const Console& console) {
  const absl::StatusOr<v1::StatusReply> reply = MakeClient(options).Status();
  if (!reply.ok()) return Fail(console, reply.status());
  const bool none = reply->workers().empty() && reply->aggregators().empty();
  if (none && !options.quiet) console.err << "no members yet" << std::endl;
  Print(MemberList{*reply}, options, console);
  return kExitOk;
}

int WatchRuns(const GlobalOptions& options, const std::string& run, const Console& console) {
  const CoordinatorClient client = MakeClient(options);
  Progress progress(console.out, {.terminal = console.out_terminal,
                                  .color = console.color && console.out_terminal,
                                  .width = console.width});
  PredictionNotes notes;
  FollowOptions follow;
  follow.run = run;
  follow.deadline = DeadlineOf(options, absl::Now());
  bool connected = false;
  follow.on_update = [&](const v1::WatchUpdate& update) {
    connected = true;
    if (options.format == OutputFormat::kJson) {
      console.out << OneLine(ToJson(update)) << std::endl;
    } else {
      progress.Update(update.run(), absl::Now());
      for (const std::string& line : notes.New(update)) progress.Note(line);
    }
    // Stop when the reader has closed the pipe.
    return console.out.good();
  };
  follow.on_away = [&](const absl::Status& status) {
    if (connected && !options.quiet) {
      console.err << "cadre: " << status.message() << "; retrying" << std::endl;
    }
  };
  const absl::Status status = Follow(client, follow);
  progress.Finish();
  return status.ok() ? kExitOk : Fail(console, status);
}

}  // namespace cadre
