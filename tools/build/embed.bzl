"""Files as C++ constants, so that the program needs no files beside it."""

# Writes NAME.cc with a `const std::string_view` for each constant: the concatenated text of its files.
def embedded_text(name, constants):
    commands = ["echo '#include <string_view>'; echo 'namespace mantissa {'"]
    for constant, files in constants.items():
        declaration = "const std::string_view %s" % constant
        commands.append("printf 'extern %s;\\n%s = R\"text('" % (declaration, declaration))
        commands.append("cat " + " ".join(["$(location %s)" % file for file in files]))
        commands.append("echo ')text\";'")
    commands.append("echo '}  // namespace mantissa'")
    native.genrule(
        name = name,
        srcs = [file for files in constants.values() for file in files],
        outs = [name + ".cc"],
        cmd = "{ " + "; ".join(commands) + "; } > $@",
    )

# The pages of a package, *_page.js, in a list for its library's srcs: model_page.js as kModelPage, after its parts,
# model_page_*.js.
def page_scripts():
    embedded_text(
        name = "page_scripts",
        constants = {
            "k" + "".join([word.capitalize() for word in page.split("/")[-1].split("_")]): native.glob([page + "_*.js"]) + [page + ".js"]
            for page in [file[:-3] for file in native.glob(["**/*_page.js"])]
        },
    )
    return [":page_scripts"]
