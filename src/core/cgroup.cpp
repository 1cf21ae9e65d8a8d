// cgroups(7) and proc(5), /proc/PID/mountinfo. A group's place is told twice:
//   /proc/self/cgroup     0::/a/b            version 2, the path of the group in its hierarchy
//                         4:cpu,cpuacct:/a   version 1, one hierarchy for each list of controllers
//   /proc/self/mountinfo  31 23 0:28 /a /sys/fs/cgroup rw - cgroup2 cgroup rw
//                         fields 4 and 5: the part of the hierarchy that is mounted, and where
// so that the group is /sys/fs/cgroup/b, and what is above it are the folders up to /sys/fs/cgroup. In a
// container the mounted part may be one that the path knows nothing of; then the mount point is the group.
// What is absent, unreadable or no number limits nothing.
#include "core/cgroup.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace halfbyte {
namespace {

std::vector<std::string> words_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

std::vector<std::string> words_of_file(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return words_of(line);
}

// Processors of one group, or 0: "max 100000", "-1" and whatever else is not two numbers above 0 is no limit.
int processors(std::string_view quota, std::string_view period) {
    const auto number = [](std::string_view text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        return error == std::errc() && end == text.data() + text.size() ? value : 0;
    };
    const int64_t time = number(quota), of = number(period);
    if (time <= 0 || of <= 0) return 0;
    return int(std::clamp<int64_t>(time / of, 1, std::numeric_limits<int>::max()));
}

int processors_v2(const std::string& folder) {
    const std::vector<std::string> words = words_of_file(folder + "/cpu.max");
    return words.size() == 2 ? processors(words[0], words[1]) : 0;
}

int processors_v1(const std::string& folder) {
    const std::vector<std::string> quota = words_of_file(folder + "/cpu.cfs_quota_us"),
                                   period = words_of_file(folder + "/cpu.cfs_period_us");
    return quota.size() == 1 && period.size() == 1 ? processors(quota[0], period[0]) : 0;
}

bool lists_cpu(std::string_view list) {  // cpuacct,cpu
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        if (list.substr(0, comma) == "cpu") return true;
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return false;
}

// The path of the process's group, "/" if there is no line of it.
std::string group_path(const std::string& root, bool v2) {
    std::ifstream lines(root + "/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (v2 ? line.starts_with("0::") : lists_cpu(controllers)) return line.substr(second + 1);
    }
    return "/";
}

struct Mount {
    std::string part;   // of the hierarchy
    std::string point;  // without a slash at its end
};

std::string unescaped(const std::string& field) {  // \040 is a blank
    const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
    std::string text;
    for (size_t i = 0; i < field.size(); i++) {
        if (field[i] == '\\' && i + 3 < field.size() && is_octal(field[i + 1]) && is_octal(field[i + 2]) &&
            is_octal(field[i + 3])) {
            text += char((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0'));
            i += 3;
        } else {
            text += field[i];
        }
    }
    return text;
}

std::vector<Mount> mounts_of(const std::string& root, bool v2) {
    std::vector<Mount> mounts;
    std::ifstream lines(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(lines, line);) {
        const std::vector<std::string> fields = words_of(line);
        if (fields.size() < 6) continue;
        // Optional fields lie between the sixth and the dash; then type, device and options of the hierarchy.
        const auto dash = std::find(fields.begin() + 6, fields.end(), "-");
        if (fields.end() - dash < 4) continue;
        if (v2 ? dash[1] != "cgroup2" : dash[1] != "cgroup" || !lists_cpu(dash[3])) continue;
        Mount mount{unescaped(fields[3]), unescaped(fields[4])};
        if (mount.point == "/") mount.point.clear();
        mounts.push_back(mount);
    }
    return mounts;
}

// What of path is below the mounted part: "" or "/b/c". Nothing: it does not lie there.
std::optional<std::string> below(const std::string& path, const std::string& part) {
    const std::string prefix = part == "/" ? "" : part;
    if (!path.starts_with(prefix)) return std::nullopt;
    std::string rest = path.substr(prefix.size());
    if (rest.empty() || rest == "/") return "";
    // "..": a group outside of the process's cgroup namespace.
    if (rest[0] != '/' || (rest + "/").find("/../") != std::string::npos) return std::nullopt;
    return rest;
}

void take_least(int& least, int limit) {
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
}

int hierarchy_limit(const std::string& root, bool v2) {
    const std::string path = group_path(root, v2);
    const std::vector<Mount> mounts = mounts_of(root, v2);
    int least = 0;
    const auto look = [&](const std::string& point, std::string rest) {
        const std::string top = root + point;
        for (;;) {
            const std::string folder = top + rest;
            take_least(least, v2 ? processors_v2(folder) : processors_v1(folder));
            if (rest.empty()) return;
            rest.resize(rest.rfind('/'));
        }
    };
    bool found = false;
    for (const Mount& mount : mounts)
        if (const auto rest = below(path, mount.part)) {
            look(mount.point, *rest);
            found = true;
        }
    if (!found && !mounts.empty()) look(mounts[0].point, "");
    return least;
}

}  // namespace

int cgroup_processors(const std::string& root) {
    int least = hierarchy_limit(root, true);
    take_least(least, hierarchy_limit(root, false));
    return least;
}

}  // namespace halfbyte
