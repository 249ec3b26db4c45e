#include "cli/queries.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/follow.h"
#include "cli/json.h"
#include "cli/prediction_notes.h"
#include "cli/progress.h"
#include "cli/query_tables.h"

namespace cadre {
namespace {

template <typename Messages>
std::string ListJson(const Messages& messages) {
  return absl::StrCat("[",
                      absl::StrJoin(messages, ",",
                                    [](std::string* out, const google::protobuf::Message& message) {
                                      absl::StrAppend(out, ToJson(message));
                                    }),
                      "]");
}

}  // namespace

int ListRuns(const GlobalOptions& options, const Console& console) {
  const absl::StatusOr<v1::ListReply> reply = MakeClient(options).List();
  if (!reply.ok()) return Fail(console, reply.status());
  if (options.format == OutputFormat::kJson) {
    console.out << Indent(ToJson(*reply)) << std::endl;
    return kExitOk;
  }
  if (reply->runs().empty()) console.err << "no runs yet" << std::endl;
  console.out << RunsTable(reply->runs()) << std::flush;
  return kExitOk;
}

int ShowStatus(const GlobalOptions& options, const std::string& run, const Console& console) {
  const absl::StatusOr<v1::StatusReply> reply = MakeClient(options).Status(run);
  if (!reply.ok()) return Fail(console, reply.status());
  if (options.format == OutputFormat::kJson) {
    console.out << Indent(ToJson(*reply)) << std::endl;
  } else {
    console.out << StatusText(*reply, options.coordinator) << std::flush;
  }
  return kExitOk;
}

int ShowMembers(const GlobalOptions& options, const Console& console) {
  const absl::StatusOr<v1::StatusReply> reply = MakeClient(options).Status();
  if (!reply.ok()) return Fail(console, reply.status());
  if (options.format == OutputFormat::kJson) {
    console.out << Indent(JsonObject()
                              .AddRaw("workers", ListJson(reply->workers()))
                              .AddRaw("aggregators", ListJson(reply->aggregators()))
                              .Text())
                << std::endl;
    return kExitOk;
  }
  const std::string workers = WorkersTable(reply->workers());
  const std::string aggregators = AggregatorsTable(reply->aggregators());
  if (workers.empty() && aggregators.empty()) console.err << "no members yet" << std::endl;
  console.out << workers << (workers.empty() || aggregators.empty() ? "" : "\n") << aggregators
              << std::flush;
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
  bool heard = false;
  follow.on_update = [&](const v1::WatchUpdate& update) {
    heard = true;
    if (options.format == OutputFormat::kJson) {
      console.out << ToJson(update) << std::endl;
    } else {
      progress.Update(update.run(), absl::Now());
      for (const std::string& line : notes.New(update)) progress.Note(line);
    }
    // A reader that went away (a closed pipe) wants no more.
    return console.out.good();
  };
  follow.on_away = [&](const absl::Status& status) {
    if (heard && !options.quiet) {
      console.err << "cadre: " << status.message() << "; trying again" << std::endl;
    }
  };
  const absl::Status status = Follow(client, follow);
  progress.Finish();
  return status.ok() ? kExitOk : Fail(console, status);
}

}  // namespace cadre
