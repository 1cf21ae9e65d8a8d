#include "core/partial_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "core/output_file.h"
#include "core/output_folder.h"
#include "support/temporary_folder.h"
#include "support/throws.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using Names = std::set<std::string>;

// What a run leaves that is killed while it writes `place`: the name of its folder.
std::string killed_while_writing(const fs::path& place) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const PartialOutput partial(place);
        test::write_file(partial.folder() / "half", "ha");
        const std::string name = partial.folder().filename();
        (void)!::write(ends[1], name.data(), name.size());
        ::_exit(0);
    }
    ::close(ends[1]);
    char name[256] = {};
    EXPECT_GT(::read(ends[0], name, sizeof name - 1), 0);
    ::close(ends[0]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return name;
}

TEST(PartialOutput, IsAFolderAndItsLockWhichGoTogether) {
    const TemporaryFolder folder;
    {
        const PartialOutput partial(folder / "out");
        const std::string name = partial.folder().filename();
        EXPECT_EQ(folder.names(), (Names{name, name + ".lock"}));
        EXPECT_TRUE(name.starts_with("out.partial-")) << name;
        EXPECT_EQ(partial.folder().parent_path(), folder.path());  // a rename never crosses file systems
        test::write_file(partial.folder() / "half", "ha");
        fs::create_directory(partial.folder() / "inside");
    }
    EXPECT_EQ(folder.names(), Names{});
    EXPECT_TRUE(test::throws(ErrorKind::failure, "nothing can be made in " + (folder / "no").string(),
                             [&] { const PartialOutput partial(folder / "no/out"); }));
}

TEST(PartialOutput, WhatAKilledRunLeftIsFoundAndRemoved) {
    const TemporaryFolder folder;
    const std::string first = killed_while_writing(folder / "out"),
                      second = killed_while_writing(folder / "out"),
                      other = killed_while_writing(folder / "out2");
    std::vector<fs::path> expected = {folder / first, folder / second};
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(leftovers_of(folder / "out"), expected);
    EXPECT_EQ(leftovers_of(folder / "out/"), expected);
    EXPECT_EQ(folder.names().size(), 6u);  // looking removes nothing
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), (Names{other, other + ".lock"}));
    EXPECT_EQ(leftovers_of(folder / "out"), std::vector<fs::path>{});
}

TEST(PartialOutput, TheLockAloneIsALeftoverToo) {
    const TemporaryFolder folder;
    const std::string name = killed_while_writing(folder / "out");
    fs::remove_all(folder / name);
    EXPECT_EQ(leftovers_of(folder / "out"), std::vector{folder / (name + ".lock")});
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), Names{});
}

TEST(PartialOutput, ARunThatGoesOnIsLeftAlone) {
    const TemporaryFolder folder;
    const PartialOutput partial(folder / "out");
    const Names before = folder.names();
    EXPECT_EQ(leftovers_of(folder / "out"), std::vector<fs::path>{});
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), before);
}

TEST(PartialOutput, FoldersOfOthersAreLeftAlone) {
    const TemporaryFolder folder;
    const std::string left = killed_while_writing(folder / "out");
    const std::string text = test::read_file(folder / (left + ".lock"));
    remove_leftovers_of(folder / "out");
    for (const char* name :
         {"out.partial-abc123", "out.partial-none00", "out.partial-other0", "out.partial-empty0",
          "out.partial-toolong", "out.partial-bad.00", "out.partial-linked"})
        test::write_file((fs::create_directory(folder / name), folder / name / "thesis"), "years of work");
    test::write_file(folder / "out.partial-other0.lock", "another program's lock");
    test::write_file(folder / "out.partial-empty0.lock", "");
    test::write_file(folder / "out.partial-toolong.lock", text);
    test::write_file(folder / "out.partial-bad.00.lock", text);
    test::write_file(folder / "elsewhere", text);
    fs::create_symlink(folder / "elsewhere", folder / "out.partial-linked.lock");
    fs::create_directory(folder / "out.partial-folder.lock");
    const Names before = folder.names();
    EXPECT_EQ(leftovers_of(folder / "out"), std::vector<fs::path>{});
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), before);
}

TEST(PartialOutput, ALockThatWasNeverFilledGoes) {
    const TemporaryFolder folder;
    test::write_file(folder / "out.partial-abc123.lock", "");
    EXPECT_EQ(leftovers_of(folder / "out"), std::vector<fs::path>{});  // nothing to tell of
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), Names{});
}

TEST(PartialOutput, AnOutputThatWasMovedAsideComesBack) {
    const TemporaryFolder folder;
    const std::string name = killed_while_writing(folder / "out");
    test::write_file((fs::create_directory(folder / (name + ".old")), folder / (name + ".old") / "kept"),
                     "kept");
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out" / "kept"), "kept");

    const std::string again = killed_while_writing(folder / "out");
    fs::create_directory(folder / (again + ".old"));  // its place is taken: the swap was done
    remove_leftovers_of(folder / "out");
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out" / "kept"), "kept");
}

TEST(PartialOutput, ASignalHandlerRemovesThoseThatAreNotBeingPutInPlace) {
    const TemporaryFolder folder;
    const PartialOutput kept(folder / "kept");
    kept.keep();
    {
        const PartialOutput one(folder / "one"), two(folder / "two");
        for (int i = 0; i < 300; i++)
            test::write_file(one.folder() / (std::string(200, 'x') + std::to_string(i)), "x");
        fs::create_directory(two.folder() / "deep");  // not flat: stays, with its lock
        remove_partial_outputs();
        const std::string k = kept.folder().filename(), t = two.folder().filename();
        EXPECT_EQ(folder.names(), (Names{k, k + ".lock", t, t + ".lock"}));
    }
    EXPECT_EQ(folder.names().size(), 2u);
    remove_partial_outputs();
    EXPECT_EQ(folder.names().size(), 2u);
}

TEST(PartialOutput, FreeSpaceIsTold) {
    const TemporaryFolder folder;
    check_free_space(folder / "out", 1);
    EXPECT_TRUE(test::throws(
        ErrorKind::failure,
        {(folder / "out: needs at least 1073741824 MiB").c_str(), "the file system /", " free; make room"},
        [&] { check_free_space(folder / "out", uint64_t(1) << 50); }));
    EXPECT_TRUE(test::throws(ErrorKind::failure, "stays until the new one is whole",
                             [&] { check_free_space(folder.path() / "", uint64_t(1) << 50); }));
}

TEST(OutputFile, AppearsWholeWithCommitAndNotBefore) {
    const TemporaryFolder folder;
    {
        OutputFile output(folder / "out", false);
        test::write_file(output.path(), "whole");
        EXPECT_FALSE(fs::exists(folder / "out"));
        output.commit();
    }
    {
        OutputFile output(folder / "out", true);
        test::write_file(output.path(), "half");
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out"), "whole");
    {
        OutputFile output(folder / "out", true);
        test::write_file(output.path(), "new");
        output.commit();
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out"), "new");
}

TEST(OutputFile, RefusesWhatExistsOrCannotBe) {
    const TemporaryFolder folder;
    test::write_file(folder / "file", "kept");
    fs::create_symlink(folder / "nowhere", folder / "link");
    fs::create_directory(folder / "folder");
    for (const char* name : {"file", "link"})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "exists already; --force",
                                 [&] { OutputFile output(folder / name, false); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, "is a link or a device",
                             [&] { OutputFile output(folder / "link", true); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, "is a link or a device",
                             [&] { OutputFile output("/dev/null", true); }));
    for (const char* name : {"folder", "folder/", "", ".", "folder/.."})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "is a folder; give the name of a file", [&] {
            OutputFile output(folder.path() / name, true);
        })) << name;
    EXPECT_TRUE(test::throws(ErrorKind::failure, (folder / "no").string() + " does not exist",
                             [&] { OutputFile output(folder / "no/out", false); }));
    EXPECT_EQ(folder.names(), (Names{"file", "link", "folder"}));
}

TEST(OutputFile, ASecondRunIsRefusedWhileTheFirstLives) {
    const TemporaryFolder folder;
    {
        const OutputFile first(folder / "out", false);
        for (const bool force : {false, true}) {
            EXPECT_TRUE(test::throws(ErrorKind::usage, "another run is writing it now",
                                     [&] { OutputFile output(folder / "out", force); }));
            EXPECT_TRUE(test::throws(ErrorKind::usage, "another run is writing it now",
                                     [&] { OutputFolder output(folder / "out", force); }));
        }
        const OutputFile other(folder / "out2", false);
    }
    OutputFile(folder / "out", false);
}

TEST(OutputFile, WhatAppearsMeanwhileIsNotOverwritten) {
    const TemporaryFolder folder;
    {
        OutputFile output(folder / "out", false);
        test::write_file(output.path(), "ours");
        test::write_file(folder / "out", "theirs");
        EXPECT_TRUE(test::throws(ErrorKind::usage, "appeared meanwhile", [&] { output.commit(); }));
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out"), "theirs");
}

}  // namespace
}  // namespace halfbyte
