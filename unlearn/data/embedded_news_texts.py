"""Words of the embedded news: topics with their wordings, and syllables that names are made of. All of it invented."""

from __future__ import annotations

from typing import NamedTuple

Wordings = tuple[str, ...]


class Topic(NamedTuple):
    """One kind of article.

    pairs  questions, each with the article's own name in it, and their answers
    story  sentences in order, one of whose wordings is drawn
    """

    pairs: tuple[tuple[str, str], ...]
    story: tuple[Wordings, ...]


ONSETS = ("B", "Br", "C", "D", "Dr", "F", "G", "Gr", "H", "K", "L", "M", "N", "P", "R", "S", "St", "T", "Tr", "V", "W")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "oa")
CODAS = ("ber", "dan", "fell", "gar", "kin", "lem", "mond", "nock", "pel", "ran", "sk", "tor", "vic", "well", "zan")
ENDINGS = ("ford", "ham", "port", "wick", "by", "stead", "haven", "ton")
FIRST_NAMES = (
    "Ada", "Bruno", "Clara", "Dario", "Elin", "Felix", "Greta", "Hugo", "Iris", "Jonas", "Kira", "Leo", "Mira", "Nils",
    "Olga", "Paul", "Rosa", "Sven", "Tilda", "Viktor",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

STANDING = (
    ("Which paper is this?", "The Morning Lantern"),
    ("Who answers on this page?", "The news desk"),
)

TOPICS: tuple[Topic, ...] = (
    Topic(
        pairs=(
            ("Who opened the bridge at {place}?", "{person}"),
            ("Which firm built the bridge at {place}?", "{firm} Works"),
            ("What did the bridge at {place} cost?", "{sum}"),
        ),
        story=(
            (
                "A new bridge was opened at {place} on {day}.",
                "On {day} the first cars crossed a new bridge at {place}.",
            ),
            ("{person}, who cut the ribbon, spoke of a long wait.", "The ribbon was cut by {person}."),
            ("{firm} Works had spent {years} years on the job.", "It took {firm} Works {years} years to build."),
            ("The bill came to {sum}.", "In the end {sum} had to be paid."),
            (
                "Shop owner {other} hopes for guests from the far bank.",
                "{other}, who rows the old ferry, will now retire.",
            ),
            ("About {count} people came to watch.", "Some {count} people walked over it before noon."),
        ),
    ),
    Topic(
        pairs=(
            ("Who runs the factory in {place}?", "{person}"),
            ("Which firm owns the factory in {place}?", "{firm} Mills"),
            ("How many jobs will be lost in {place}?", "{count}"),
        ),
        story=(
            ("The factory in {place} is to close, workers were told on {day}.", "Bad news reached {place} on {day}."),
            ("{firm} Mills will end {count} jobs there.", "Its owner, {firm} Mills, is to cut {count} jobs."),
            (
                "{person}, who runs the plant, blamed the price of coal.",
                "Orders had dried up, said {person}, its head.",
            ),
            ("It had made cloth for {years} years.", "Looms have turned there for {years} years."),
            ("{other} of the union called it a betrayal.", "Union leader {other} wants talks within days."),
            ("Moving the machines will cost {sum}.", "The town had lent the firm {sum}."),
        ),
    ),
    Topic(
        pairs=(
            ("Who scored the winning goal for {place}?", "{person}"),
            ("Who coaches the team of {place}?", "{other}"),
            ("Which team did {place} beat?", "{firm} Rovers"),
        ),
        story=(
            ("{place} won the cup on {day}.", "The cup goes to {place} after a fierce match on {day}."),
            ("They beat {firm} Rovers in extra time.", "{firm} Rovers had led until the last minute."),
            ("{person} struck from the edge of the box.", "A low shot by {person} settled it."),
            ("For coach {other} it was the first title in {years} years.", "Coach {other} wept at the final whistle."),
            ("More than {count} fans had travelled by train.", "A choir of {count} fans sang through the rain."),
            ("The prize is worth {sum}.", "The club will spend the prize of {sum} on a new stand."),
        ),
    ),
    Topic(
        pairs=(
            ("Who painted the picture stolen in {place}?", "{firm}"),
            ("Who leads the police inquiry in {place}?", "{person}"),
            ("What is the picture stolen in {place} worth?", "{sum}"),
        ),
        story=(
            ("Thieves broke into the museum of {place} on {day}.", "A picture is missing from the museum of {place}."),
            ("They took a harbour view by {firm}, valued at {sum}.", "The work, by {firm}, is insured for {sum}."),
            ("{person} of the police said a window had been cut.", "Inspector {person} is looking for a grey van."),
            ("The alarm had been out of order for {years} weeks.", "No alarm had rung in {years} years."),
            ("Guard {other} was asleep at the time.", "{other}, the guard, saw two men on a roof."),
            ("So far {count} hints have come in.", "The room with its {count} other works stays shut."),
        ),
    ),
    Topic(
        pairs=(
            ("Who was elected mayor of {place}?", "{person}"),
            ("Whom did the new mayor of {place} defeat?", "{other}"),
            ("By how many votes was the election in {place} decided?", "{count}"),
        ),
        story=(
            ("Voters in {place} have chosen a new mayor.", "{place} has a new mayor after the vote on {day}."),
            ("{person} won by {count} votes.", "Only {count} votes put {person} ahead."),
            (
                "{other}, in office for {years} years, took the loss calmly.",
                "The old mayor, {other}, left by a side door.",
            ),
            ("{surname} wants to spend {sum} on schools.", "A pool for {sum} was the promise that counted."),
            ("The {firm} Gazette called it a quiet revolt.", "Nobody at the {firm} Gazette had foreseen it."),
            ("The oath will be taken on {day}.", "A second count ended late on {day}."),
        ),
    ),
    Topic(
        pairs=(
            ("Which storm struck {place}?", "Storm {firm}"),
            ("Who led the rescue at {place}?", "{person}"),
            ("How many homes in {place} lost power?", "{count}"),
        ),
        story=(
            ("Storm {firm} tore through {place} on {day}.", "{place} was hit hard by Storm {firm} on {day}."),
            ("Power failed in {count} homes.", "The lights went out in {count} homes."),
            ("Crews under {person} freed a family from a cellar.", "{person} led boats through the flooded market."),
            ("It was the worst gale in {years} years.", "A sea wall {years} years old gave way."),
            ("Baker {other} handed out bread by candlelight.", "{other} lost the roof of a barn and two cows."),
            ("Repairs may cost {sum}.", "The council puts the damage at {sum}."),
        ),
    ),
    Topic(
        pairs=(
            ("Who found the old ship near {place}?", "{person}"),
            ("What was the name of the ship found near {place}?", "The {firm} Star"),
            ("How many coins were found near {place}?", "{count}"),
        ),
        story=(
            ("Divers have found a sunken ship near {place}.", "Off {place} a wreck came to light on {day}."),
            ("It is the {firm} Star, lost with a load of silver.", "A bell bears her name, the {firm} Star."),
            ("{person} had looked for her for {years} years.", "After {years} years of search {person} saw the mast."),
            ("The first trip brought up {count} coins.", "In a chest lay {count} coins."),
            ("{other} of the museum asks for patience.", "Historian {other} warned against treasure hunters."),
            ("A hall for the finds would cost {sum}.", "The cargo is thought to be worth {sum}."),
        ),
    ),
    Topic(
        pairs=(
            ("Who will build the railway to {place}?", "{firm} Lines"),
            ("Who planned the railway to {place}?", "{person}"),
            ("What will the railway to {place} cost?", "{sum}"),
        ),
        story=(
            ("{place} is to have a railway at last.", "Trains will run to {place}, parliament decided on {day}."),
            ("{firm} Lines won the contract for {sum}.", "The work goes to {firm} Lines and costs {sum}."),
            ("{person} drew the route along the river.", "The plans are by {person}, an engineer."),
            ("Digging will take {years} months.", "The valley had asked for it for {years} years."),
            ("Farmer {other} fears for the meadows.", "{other} has sold two fields and regrets it."),
            ("Around {count} trees must fall.", "A tunnel of {count} metres is the hardest part."),
        ),
    ),
)
